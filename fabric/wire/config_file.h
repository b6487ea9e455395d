// YAML or JSON text -> any proto message, by reflection and strictly: keys are field names, unknown
// keys are errors with a suggestion, values must have the field's type. The only reader of
// configuration and job files. Pure but for ParseYamlFile.
//
//   enums        lower case without their prefix: `position: rotary`
//   numbers      decimal; 1e-3 for a floating-point field; true or false for a bool
//   text         taken as it stands, quoted or not
//   errors       InvalidArgument "<filename>:<line>:<column>: <field path>: what; what to do"
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"

#include "fabric/base/status.h"
#include "fabric/wire/yaml_tree.h"

namespace google::protobuf {
class Message;
}

namespace weft::wire {

// Where each field of a message was written, for errors found later.
struct SourceMap {
  std::string filename;
  std::map<std::string, YamlPosition> fields;  // "train.steps" -> its value

  // "<filename>:<line>:<column>: " of the field or of the nearest one around it.
  std::string Where(absl::string_view field_path) const;
};

// Replaces `out`; on error its content is unspecified. `positions` may be null.
Status ParseYaml(absl::string_view text, const std::string& filename,
                 google::protobuf::Message* out, SourceMap* positions = nullptr);

// Reads `path` as well. NotFound when there is no such file.
Status ParseYamlFile(const std::string& path, google::protobuf::Message* out,
                     SourceMap* positions = nullptr);

// Applies "train.steps=60" to `out`: the value, written as in YAML, replaces that field; a map
// replaces a whole message. Errors begin with "--set <assignment>: ".
Status ApplySetting(absl::string_view assignment, google::protobuf::Message* out);

// `message` as JSON that ParseYaml reads back: field names, enums in lower case, 64-bit integers as
// numbers, times in RFC 3339; keys sorted. Fields without presence are always there. `indent` < 0:
// one line.
std::string MessageToJson(const google::protobuf::Message& message, int indent = -1);

}  // namespace weft::wire
