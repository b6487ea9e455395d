#include "fabric/wire/config_file.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/message.h"

#include "fabric/base/suggest.h"
#include "fabric/ckpt/atomic_file.h"
#include "fabric/wire/enum_name.h"

namespace weft::wire {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;

std::string Child(absl::string_view path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

std::vector<std::string> FieldNames(const Descriptor& descriptor) {
  std::vector<std::string> names;
  for (int i = 0; i < descriptor.field_count(); ++i) names.push_back(descriptor.field(i)->name());
  return names;
}

std::string KindName(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "no value";
    case YamlNode::Kind::kList:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a map";
    case YamlNode::Kind::kScalar:
      break;
  }
  constexpr size_t kShown = 60;
  const std::string text = absl::CHexEscape(node.text);
  return text.size() <= kShown ? absl::StrCat("'", text, "'")
                               : absl::StrCat("'", text.substr(0, kShown), "...'");
}

std::string WantedName(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return "a number";
    case FieldDescriptor::CPPTYPE_STRING:
      return "text";
    case FieldDescriptor::CPPTYPE_ENUM:
      return "one of " + absl::StrJoin(EnumNames(*field.enum_type()), ", ");
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "a map";
    default:
      return "a whole number";
  }
}

bool IsDecimalInteger(absl::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return false;
  for (const char c : text) {
    if (!absl::ascii_isdigit(c)) return false;
  }
  return true;
}

// Digits, a point, an exponent: nothing that other readers of YAML take for a date, an octal number
// or text.
bool IsDecimalNumber(absl::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  size_t digits = 0;
  size_t i = 0;
  while (i < text.size() && absl::ascii_isdigit(text[i])) ++i, ++digits;
  if (i < text.size() && text[i] == '.') ++i;
  while (i < text.size() && absl::ascii_isdigit(text[i])) ++i, ++digits;
  if (digits == 0) return false;
  if (i == text.size()) return true;
  if (text[i] != 'e' && text[i] != 'E') return false;
  ++i;
  if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
  const size_t exponent = i;
  while (i < text.size() && absl::ascii_isdigit(text[i])) ++i;
  return i == text.size() && i > exponent;
}

// "; write 1000" when `text` is a whole number in another spelling (1e3, 1_000, 1000.0, 0100).
std::string IntegerAdvice(const std::string& text) {
  std::string plain;
  for (const char c : text) {
    if (c != '_') plain.push_back(c);
  }
  double value = 0;
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!IsDecimalNumber(plain) || !absl::SimpleAtod(plain, &value)) return "";
  if (std::abs(value) > kExact || value != std::floor(value)) return "";
  return absl::StrCat("; write ", static_cast<int64_t>(value));
}

// Fills messages from nodes. `setting` non-empty: errors name that command-line setting and not a
// place in a file.
class MessageReader {
 public:
  MessageReader(std::string filename, std::string setting, SourceMap* positions)
      : filename_(std::move(filename)), setting_(std::move(setting)), positions_(positions) {}

  Status ReadMessage(const YamlNode& node, const std::string& path, Message* out) {
    if (node.kind != YamlNode::Kind::kMap) {
      if (path.empty() && node.kind == YamlNode::Kind::kNull) {
        return InvalidArgument(filename_, ": empty; a map of keys is wanted, for example '",
                               out->GetDescriptor()->field(0)->name(), ": ...'");
      }
      return Error(node.at, path, KindName(node), " where a map is wanted, with keys ",
                   absl::StrJoin(FieldNames(*out->GetDescriptor()), ", "));
    }
    const Descriptor& descriptor = *out->GetDescriptor();
    std::map<const OneofDescriptor*, const YamlNode::Entry*> chosen;
    for (const YamlNode::Entry& entry : node.entries) {
      const FieldDescriptor* field = descriptor.FindFieldByName(entry.key);
      if (field == nullptr) return UnknownKey(entry.key_at, entry.key, path, descriptor);
      if (const OneofDescriptor* oneof = field->real_containing_oneof()) {
        const auto [first, added] = chosen.emplace(oneof, &entry);
        if (!added) {
          return Error(entry.key_at, path, "has both '", first->second->key, "' (line ",
                       first->second->key_at.line, ") and '", entry.key, "'; keep one");
        }
      }
      const std::string field_path = Child(path, entry.key);
      if (positions_ != nullptr) positions_->fields[field_path] = entry.value->at;
      RETURN_IF_ERROR(ReadField(*entry.value, field_path, *field, out));
    }
    return absl::OkStatus();
  }

  Status ReadField(const YamlNode& node, const std::string& path, const FieldDescriptor& field,
                   Message* out) {
    if (node.kind == YamlNode::Kind::kNull) {
      return Error(node.at, path, "no value; write ",
                   field.is_map()        ? "a map"
                   : field.is_repeated() ? "a list"
                                         : WantedName(field),
                   " or remove the key");
    }
    if (field.is_map()) return ReadMap(node, path, field, out);
    if (!field.is_repeated()) return ReadValue(node, path, field, out);
    if (node.kind != YamlNode::Kind::kList) {
      return Error(node.at, path, KindName(node), " where a list is wanted; write [a, b]");
    }
    for (size_t i = 0; i < node.items.size(); ++i) {
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      if (node.items[i]->kind == YamlNode::Kind::kNull) {
        return Error(node.items[i]->at, item_path, "no value; write ", WantedName(field));
      }
      RETURN_IF_ERROR(ReadValue(*node.items[i], item_path, field, out));
    }
    return absl::OkStatus();
  }

  Status UnknownKey(YamlPosition at, const std::string& key, const std::string& path,
                    const Descriptor& descriptor) const {
    const std::vector<std::string> names = FieldNames(descriptor);
    const std::string suggestion = DidYouMean(key, names);
    return InvalidArgument(Where(at), "unknown key '", absl::CHexEscape(key), "'",
                           path.empty() ? "" : absl::StrCat(" in ", path),
                           suggestion.empty()
                               ? absl::StrCat("; known keys: ", absl::StrJoin(names, ", "))
                               : suggestion);
  }

  template <typename... Args>
  Status Error(YamlPosition at, const std::string& path, const Args&... what) const {
    return InvalidArgument(Where(at), path, path.empty() ? "" : ": ", what...);
  }

 private:
  std::string Where(YamlPosition at) const {
    if (!setting_.empty()) return absl::StrCat("--set ", setting_, ": ");
    return absl::StrCat(filename_, ":", at.line, ":", at.column, ": ");
  }

  Status ReadMap(const YamlNode& node, const std::string& path, const FieldDescriptor& field,
                 Message* out) {
    if (node.kind != YamlNode::Kind::kMap) {
      return Error(node.at, path, KindName(node), " where a map is wanted");
    }
    const FieldDescriptor& value = *field.message_type()->map_value();
    for (const YamlNode::Entry& entry : node.entries) {
      Message* item = out->GetReflection()->AddMessage(out, &field);
      YamlNode key;
      key.kind = YamlNode::Kind::kScalar;
      key.at = entry.key_at;
      key.text = entry.key;
      const std::string item_path = Child(path, entry.key);
      RETURN_IF_ERROR(ReadField(key, item_path, *field.message_type()->map_key(), item));
      RETURN_IF_ERROR(ReadField(*entry.value, item_path, value, item));
    }
    return absl::OkStatus();
  }

  Status ReadValue(const YamlNode& node, const std::string& path, const FieldDescriptor& field,
                   Message* out) {
    const Reflection& reflection = *out->GetReflection();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return ReadMessage(node, path,
                         field.is_repeated() ? reflection.AddMessage(out, &field)
                                             : reflection.MutableMessage(out, &field));
    }
    if (node.kind != YamlNode::Kind::kScalar) {
      return Error(node.at, path, KindName(node), " where ", WantedName(field), " is wanted");
    }
    if (node.quoted && field.cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
        field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM) {
      return Error(node.at, path, KindName(node), " is quoted text where ", WantedName(field),
                   " is wanted; remove the quotes");
    }
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
      case FieldDescriptor::CPPTYPE_INT64:
      case FieldDescriptor::CPPTYPE_UINT32:
      case FieldDescriptor::CPPTYPE_UINT64:
        return ReadInteger(node, path, field, out);
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT:
        return ReadNumber(node, path, field, out);
      case FieldDescriptor::CPPTYPE_BOOL:
        return ReadBool(node, path, field, out);
      case FieldDescriptor::CPPTYPE_ENUM:
        return ReadEnum(node, path, field, out);
      default:
        return ReadText(node, path, field, out);
    }
  }

  template <typename T, bool (*Parse)(absl::string_view, T*)>
  Status ReadIntegerOf(const YamlNode& node, const std::string& path, T* value) const {
    if (!IsDecimalInteger(node.text)) {
      return Error(node.at, path, KindName(node), " is not a whole number",
                   IntegerAdvice(node.text));
    }
    if (!Parse(node.text, value)) {
      return Error(node.at, path, node.text, " is out of range; from ",
                   std::numeric_limits<T>::min(), " to ", std::numeric_limits<T>::max());
    }
    return absl::OkStatus();
  }

  Status ReadInteger(const YamlNode& node, const std::string& path, const FieldDescriptor& field,
                     Message* out) const {
    const Reflection& r = *out->GetReflection();
    const bool add = field.is_repeated();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      int32_t v = 0;
      RETURN_IF_ERROR((ReadIntegerOf<int32_t, absl::SimpleAtoi>(node, path, &v)));
      add ? r.AddInt32(out, &field, v) : r.SetInt32(out, &field, v);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      int64_t v = 0;
      RETURN_IF_ERROR((ReadIntegerOf<int64_t, absl::SimpleAtoi>(node, path, &v)));
      add ? r.AddInt64(out, &field, v) : r.SetInt64(out, &field, v);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
      uint32_t v = 0;
      RETURN_IF_ERROR((ReadIntegerOf<uint32_t, absl::SimpleAtoi>(node, path, &v)));
      add ? r.AddUInt32(out, &field, v) : r.SetUInt32(out, &field, v);
    } else {
      uint64_t v = 0;
      RETURN_IF_ERROR((ReadIntegerOf<uint64_t, absl::SimpleAtoi>(node, path, &v)));
      add ? r.AddUInt64(out, &field, v) : r.SetUInt64(out, &field, v);
    }
    return absl::OkStatus();
  }

  Status ReadNumber(const YamlNode& node, const std::string& path, const FieldDescriptor& field,
                    Message* out) const {
    double v = 0;
    if (!IsDecimalNumber(node.text) || !absl::SimpleAtod(node.text, &v)) {
      return Error(node.at, path, KindName(node), " is not a number; write 0.001 or 1e-3");
    }
    const bool single = field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT;
    if (!std::isfinite(v) || (single && std::abs(v) > std::numeric_limits<float>::max())) {
      return Error(node.at, path, node.text, " is out of range");
    }
    const Reflection& r = *out->GetReflection();
    if (single) {
      field.is_repeated() ? r.AddFloat(out, &field, static_cast<float>(v))
                          : r.SetFloat(out, &field, static_cast<float>(v));
    } else {
      field.is_repeated() ? r.AddDouble(out, &field, v) : r.SetDouble(out, &field, v);
    }
    return absl::OkStatus();
  }

  Status ReadBool(const YamlNode& node, const std::string& path, const FieldDescriptor& field,
                  Message* out) const {
    if (node.text != "true" && node.text != "false") {
      return Error(node.at, path, KindName(node), " is not a truth value; write true or false");
    }
    const bool v = node.text == "true";
    const Reflection& r = *out->GetReflection();
    field.is_repeated() ? r.AddBool(out, &field, v) : r.SetBool(out, &field, v);
    return absl::OkStatus();
  }

  Status ReadEnum(const YamlNode& node, const std::string& path, const FieldDescriptor& field,
                  Message* out) const {
    const EnumValueDescriptor* value = FindEnumValue(*field.enum_type(), node.text);
    if (value == nullptr) {
      const std::vector<std::string> names = EnumNames(*field.enum_type());
      return Error(node.at, path, "unknown value ", KindName(node), "; one of ",
                   absl::StrJoin(names, ", "), DidYouMean(node.text, names));
    }
    const Reflection& r = *out->GetReflection();
    field.is_repeated() ? r.AddEnum(out, &field, value) : r.SetEnum(out, &field, value);
    return absl::OkStatus();
  }

  Status ReadText(const YamlNode& node, const std::string& path, const FieldDescriptor& field,
                  Message* out) const {
    std::string v = node.text;
    if (field.type() == FieldDescriptor::TYPE_BYTES && !absl::Base64Unescape(node.text, &v)) {
      return Error(node.at, path, KindName(node), " is not base64");
    }
    const Reflection& r = *out->GetReflection();
    field.is_repeated() ? r.AddString(out, &field, v) : r.SetString(out, &field, v);
    return absl::OkStatus();
  }

  const std::string filename_;
  const std::string setting_;
  SourceMap* const positions_;
};

// Follows `names` but the last one; `path` grows along.
Status Descend(const std::vector<std::string>& names, const MessageReader& reader, Message** out,
               std::string* path, const FieldDescriptor** field) {
  for (size_t i = 0; i < names.size(); ++i) {
    const Descriptor& descriptor = *(*out)->GetDescriptor();
    *field = descriptor.FindFieldByName(names[i]);
    if (*field == nullptr) return reader.UnknownKey({}, names[i], *path, descriptor);
    const Reflection& reflection = *(*out)->GetReflection();
    const bool last = i + 1 == names.size();
    if (const OneofDescriptor* oneof = (*field)->real_containing_oneof(); oneof && !last) {
      const FieldDescriptor* set = reflection.GetOneofFieldDescriptor(**out, oneof);
      if (set != nullptr && set != *field) {
        return reader.Error({}, *path, "has '", set->name(), "'; to replace it write --set '",
                            *path, "={", names[i], ": {...}}'");
      }
    }
    *path = Child(*path, names[i]);
    if (last) break;
    if ((*field)->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || (*field)->is_repeated()) {
      return reader.Error({}, *path, "has no keys below it");
    }
    *out = reflection.MutableMessage(*out, *field);
  }
  return absl::OkStatus();
}

}  // namespace

std::string SourceMap::Where(absl::string_view field_path) const {
  std::string path(field_path);
  while (true) {
    const auto found = fields.find(path);
    if (found != fields.end()) {
      return absl::StrCat(filename, ":", found->second.line, ":", found->second.column, ": ");
    }
    const size_t dot = path.rfind('.');
    if (dot == std::string::npos) return absl::StrCat(filename, ": ");
    path.resize(dot);
  }
}

Status ParseYaml(absl::string_view text, const std::string& filename, Message* out,
                 SourceMap* positions) {
  out->Clear();
  if (positions != nullptr) *positions = SourceMap{.filename = filename, .fields = {}};
  ASSIGN_OR_RETURN(const auto root, ParseYamlTree(text, filename));
  return MessageReader(filename, "", positions).ReadMessage(*root, "", out);
}

Status ParseYamlFile(const std::string& path, Message* out, SourceMap* positions) {
  ASSIGN_OR_RETURN(const std::string text, ckpt::ReadFile(path, kMaxYamlBytes));
  return ParseYaml(text, path, out, positions);
}

Status ApplySetting(absl::string_view assignment, Message* out) {
  constexpr size_t kShown = 80;
  const std::string shown = assignment.size() <= kShown
                                ? std::string(assignment)
                                : absl::StrCat(assignment.substr(0, kShown), "...");
  const size_t equals = assignment.find('=');
  if (equals == absl::string_view::npos || equals == 0) {
    return InvalidArgument("--set ", shown, ": write key=value, for example train.steps=60");
  }
  const std::vector<std::string> names = absl::StrSplit(assignment.substr(0, equals), '.');
  const std::string value(assignment.substr(equals + 1));
  MessageReader reader("", shown, nullptr);
  std::string path;
  const FieldDescriptor* field = nullptr;
  RETURN_IF_ERROR(Descend(names, reader, &out, &path, &field));
  out->GetReflection()->ClearField(out, field);
  const bool is_text =
      field->cpp_type() == FieldDescriptor::CPPTYPE_STRING && !field->is_repeated();
  const bool is_quoted = !value.empty() && (value[0] == '"' || value[0] == '\'');
  if (is_text && !is_quoted) {
    // A path with ": " or " #" in it needs no quotes.
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    node.text = value;
    return reader.ReadField(node, path, *field, out);
  }
  auto node = ParseYamlTree(value, absl::StrCat("--set ", shown));
  if (!node.ok()) return node.status();
  return reader.ReadField(**node, path, *field, out);
}

}  // namespace weft::wire
