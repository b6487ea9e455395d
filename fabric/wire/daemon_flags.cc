#include "fabric/wire/daemon_flags.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

#include "fabric/base/check.h"
#include "fabric/wire/config_file.h"

namespace weft::wire {
namespace {

using google::protobuf::FieldDescriptor;

Status SetField(const std::string& text, const FieldDescriptor* field,
                google::protobuf::Message* config) {
  const auto* reflection = config->GetReflection();
  int64_t number = 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      reflection->SetString(config, field, text);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_INT64:
      if (!absl::SimpleAtoi(text, &number)) break;
      reflection->SetInt64(config, field, number);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_INT32:
      if (!absl::SimpleAtoi(text, &number) || number != static_cast<int32_t>(number)) break;
      reflection->SetInt32(config, field, static_cast<int32_t>(number));
      return absl::OkStatus();
    default:
      WEFT_CHECK(!"a daemon's settings are strings and integers");
  }
  return InvalidArgument("--", field->name(), "=", text, ": not a whole number in range");
}

}  // namespace

DaemonFlags::DaemonFlags(CLI::App* app, const google::protobuf::Message& defaults,
                         const std::vector<FlagHelp>& help) {
  app->add_option("--config", config_path_, "YAML file with these settings; flags beat it");
  const auto* descriptor = defaults.GetDescriptor();
  // The options keep pointers to the values.
  values_.reserve(static_cast<size_t>(descriptor->field_count()));
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const std::string& name = descriptor->field(i)->name();
    const auto row =
        std::find_if(help.begin(), help.end(), [&](const FlagHelp& h) { return h.field == name; });
    WEFT_CHECK(row != help.end());
    Value& value = values_.emplace_back();
    value.field = name;
    app->add_option("--" + name, value.text, row->help);
  }
}

Status DaemonFlags::Load(google::protobuf::Message* config) const {
  if (!config_path_.empty()) RETURN_IF_ERROR(ParseYamlFile(config_path_, config));
  for (const Value& value : values_) {
    if (value.text.empty()) continue;
    RETURN_IF_ERROR(
        SetField(value.text, config->GetDescriptor()->FindFieldByName(value.field), config));
  }
  return absl::OkStatus();
}

}  // namespace weft::wire
