// Element types. One row here is all that a dtype is; no standard-library or absl needs, so that
// kernel files may include it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// Values are stable: they travel in proto and in checkpoints.
enum class DType : uint8_t {
  kInvalid = 0,
  kF32 = 1,
  kF64 = 2,
  kBF16 = 3,
  kI32 = 4,
  kI64 = 5,
  kU8 = 6
};

struct DTypeRow {
  DType dtype;
  const char* name;         // ours
  const char* safetensors;  // the name in safetensors headers
  size_t size;              // bytes of one element
  bool is_float;
};

inline constexpr DTypeRow kDTypes[] = {
    {DType::kInvalid, "invalid", "", 0, false}, {DType::kF32, "f32", "F32", 4, true},
    {DType::kF64, "f64", "F64", 8, true},       {DType::kBF16, "bf16", "BF16", 2, true},
    {DType::kI32, "i32", "I32", 4, false},      {DType::kI64, "i64", "I64", 8, false},
    {DType::kU8, "u8", "U8", 1, false},
};

constexpr const DTypeRow& Row(DType d) { return kDTypes[static_cast<int>(d)]; }
constexpr size_t SizeOf(DType d) { return Row(d).size; }
constexpr const char* NameOf(DType d) { return Row(d).name; }
constexpr bool IsFloat(DType d) { return Row(d).is_float; }

}  // namespace weft
