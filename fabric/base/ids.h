// Strong ids. A JobId is not a WorkerId even though both are text.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

namespace weft {

template <typename Tag, typename T>
class StrongId {
 public:
  StrongId() = default;
  explicit StrongId(T value) : value_(std::move(value)) {}
  const T& value() const { return value_; }
  friend auto operator<=>(const StrongId&, const StrongId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const StrongId& id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  T value_{};
};

using JobId = StrongId<struct JobIdTag, std::string>;
using WorkerId = StrongId<struct WorkerIdTag, std::string>;
// Of a job's members: raised whenever one is lost or the gang starts anew.
using Generation = StrongId<struct GenerationTag, int64_t>;

}  // namespace weft
