// Runs the tests of this folder with one instruction set, since a process uses only one:
// --instruction_set=NAME. Passes without running any where the CPU lacks it.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/core/device/cpu_device.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string flag = "--instruction_set=";
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.compare(0, flag.size(), flag) != 0) {
      std::fprintf(stderr, "unknown argument %s\n", argv[i]);
      return 2;
    }
    const std::string name = arg.substr(flag.size());
    const std::vector<std::string> known = weft::SupportedInstructionSets();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::printf("skipped: this CPU has no %s\n", name.c_str());
      return 0;
    }
    const weft::Status status = weft::UseInstructionSet(name);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
  }
  return RUN_ALL_TESTS();
}
