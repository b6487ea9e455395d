#include <cmath>

#include "absl/strings/escaping.h"
#include "google/protobuf/message.h"
#include "google/protobuf/util/time_util.h"
#include "nlohmann/json.hpp"

#include "fabric/wire/config_file.h"
#include "fabric/wire/enum_name.h"

namespace weft::wire {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

nlohmann::json MessageValue(const Message& message);

// JSON knows no infinity and no NaN.
nlohmann::json NumberValue(double v) {
  if (std::isfinite(v)) return v;
  return std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf";
}

nlohmann::json EnumValue(const FieldDescriptor& field, int number) {
  const auto* value = field.enum_type()->FindValueByNumber(number);
  if (value == nullptr) return number;
  return EnumName(*value);
}

nlohmann::json TextValue(const FieldDescriptor& field, const std::string& text) {
  if (field.type() != FieldDescriptor::TYPE_BYTES) return text;
  return absl::Base64Escape(text);
}

nlohmann::json SingleValue(const Message& m, const FieldDescriptor& f) {
  const Reflection& r = *m.GetReflection();
  switch (f.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetInt32(m, &f);
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetInt64(m, &f);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetUInt32(m, &f);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r.GetUInt64(m, &f);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberValue(r.GetDouble(m, &f));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return NumberValue(r.GetFloat(m, &f));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetBool(m, &f);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumValue(f, r.GetEnumValue(m, &f));
    case FieldDescriptor::CPPTYPE_STRING:
      return TextValue(f, r.GetString(m, &f));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageValue(r.GetMessage(m, &f));
  }
  return nullptr;
}

nlohmann::json ItemValue(const Message& m, const FieldDescriptor& f, int i) {
  const Reflection& r = *m.GetReflection();
  switch (f.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetRepeatedInt32(m, &f, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetRepeatedInt64(m, &f, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetRepeatedUInt32(m, &f, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r.GetRepeatedUInt64(m, &f, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberValue(r.GetRepeatedDouble(m, &f, i));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return NumberValue(r.GetRepeatedFloat(m, &f, i));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetRepeatedBool(m, &f, i);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumValue(f, r.GetRepeatedEnumValue(m, &f, i));
    case FieldDescriptor::CPPTYPE_STRING:
      return TextValue(f, r.GetRepeatedString(m, &f, i));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageValue(r.GetRepeatedMessage(m, &f, i));
  }
  return nullptr;
}

nlohmann::json MapValue(const Message& m, const FieldDescriptor& f) {
  nlohmann::json result = nlohmann::json::object();
  for (int i = 0; i < m.GetReflection()->FieldSize(m, &f); ++i) {
    const Message& entry = m.GetReflection()->GetRepeatedMessage(m, &f, i);
    const nlohmann::json key = SingleValue(entry, *f.message_type()->map_key());
    result[key.is_string() ? key.get<std::string>() : key.dump()] =
        SingleValue(entry, *f.message_type()->map_value());
  }
  return result;
}

nlohmann::json MessageValue(const Message& message) {
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  if (descriptor.full_name() == "google.protobuf.Timestamp") {
    google::protobuf::Timestamp time;
    time.CopyFrom(message);
    return google::protobuf::util::TimeUtil::ToString(time);
  }
  nlohmann::json result = nlohmann::json::object();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (field.is_map()) {
      result[field.name()] = MapValue(message, field);
    } else if (field.is_repeated()) {
      nlohmann::json items = nlohmann::json::array();
      for (int k = 0; k < message.GetReflection()->FieldSize(message, &field); ++k) {
        items.push_back(ItemValue(message, field, k));
      }
      result[field.name()] = std::move(items);
    } else if (field.has_presence()) {
      if (message.GetReflection()->HasField(message, &field)) {
        result[field.name()] = SingleValue(message, field);
      }
    } else {
      nlohmann::json value = SingleValue(message, field);
      // An unspecified enum has no name that could be read back.
      if (field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM || value != "") {
        result[field.name()] = std::move(value);
      }
    }
  }
  return result;
}

}  // namespace

std::string MessageToJson(const Message& message, int indent) {
  return MessageValue(message).dump(indent, ' ', /*ensure_ascii=*/false,
                                    nlohmann::json::error_handler_t::replace);
}

}  // namespace weft::wire
