#include "fabric/wire/enum_name.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace weft::wire {
namespace {

// ReduceMode -> REDUCE_MODE_.
std::string Prefix(const google::protobuf::EnumDescriptor& type) {
  std::string prefix;
  for (const char c : type.name()) {
    if (absl::ascii_isupper(c) && !prefix.empty()) prefix.push_back('_');
    prefix.push_back(absl::ascii_toupper(c));
  }
  return prefix + "_";
}

}  // namespace

std::string EnumName(const google::protobuf::EnumValueDescriptor& value) {
  if (value.number() == 0) return "";
  const std::string prefix = Prefix(*value.type());
  absl::string_view name = value.name();
  if (absl::StartsWith(name, prefix)) name.remove_prefix(prefix.size());
  return absl::AsciiStrToLower(name);
}

std::vector<std::string> EnumNames(const google::protobuf::EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) names.push_back(EnumName(*type.value(i)));
  }
  return names;
}

const google::protobuf::EnumValueDescriptor* FindEnumValue(
    const google::protobuf::EnumDescriptor& type, absl::string_view name) {
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0 && EnumName(*type.value(i)) == name) return type.value(i);
  }
  return nullptr;
}

}  // namespace weft::wire
