// Enum values as people write them: REDUCE_MODE_ORDERED is "ordered". Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/generated_enum_reflection.h"

namespace weft::wire {

// "" for the unspecified value.
std::string EnumName(const google::protobuf::EnumValueDescriptor& value);

// All names but the unspecified one's.
std::vector<std::string> EnumNames(const google::protobuf::EnumDescriptor& type);

// nullptr when no value but the unspecified one has that name.
const google::protobuf::EnumValueDescriptor* FindEnumValue(
    const google::protobuf::EnumDescriptor& type, absl::string_view name);

// EnumNameOf(v1::JOB_STATE_DONE) is "done"; "" for a number that this build does not know.
template <typename E>
std::string EnumNameOf(E value) {
  const auto* found = google::protobuf::GetEnumDescriptor<E>()->FindValueByNumber(value);
  return found == nullptr ? "" : EnumName(*found);
}

}  // namespace weft::wire
