// The command line of a daemon: `--config FILE` in YAML and one flag for each field of its config
// message, under the field's name. A flag beats the file.
#pragma once

#include <string>
#include <vector>

#include "fabric/base/status.h"

namespace CLI {
class App;
}
namespace google::protobuf {
class Message;
}

namespace weft::wire {

struct FlagHelp {
  const char* field;
  const char* help;  // unit and default
};

// Flags of one daemon. Lives from before the parse until Load.
class DaemonFlags {
 public:
  // Adds the flags to `app`. Each field must be a string or an integer, and have a row.
  DaemonFlags(CLI::App* app, const google::protobuf::Message& defaults,
              const std::vector<FlagHelp>& help);

  // After the parse: the file, then the flags. InvalidArgument says where.
  Status Load(google::protobuf::Message* config) const;

 private:
  struct Value {
    std::string field;
    std::string text;
  };
  std::string config_path_;
  std::vector<Value> values_;  // one a field; never grows after the constructor
};

}  // namespace weft::wire
