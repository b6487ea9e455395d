#include <iostream>
#include <string>
#include <vector>

#include "client/cli/cli.h"

int main(int argc, char** argv) {
  weft::Interrupts interrupts;
  return weft::cli::RunCli(std::vector<std::string>(argv + 1, argv + argc),
                           weft::cli::ReadEnvironment(), interrupts, std::cout, std::cerr);
}
