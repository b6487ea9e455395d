// safetensors files: 8 bytes of little-endian header length, a JSON header, raw little-endian
// tensors. The reader trusts nothing: every offset, shape and dtype is checked before a byte is
// used.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "fabric/base/status.h"
#include "fabric/base/tensor_meta.h"
#include "fabric/ckpt/atomic_file.h"

namespace weft::ckpt {

struct NamedTensor {
  std::string name;
  TensorMeta meta;
  const void* data = nullptr;  // contiguous; not owned
};

// Appends one safetensors file with `tensors` in the given order; data starts at a multiple of 64
// bytes.
Status WriteSafetensors(absl::Span<const NamedTensor> tensors, FileWriter* out);

// A parsed file; `tensors` point into `bytes`, which it owns.
class Safetensors {
 public:
  // DataLoss says what is wrong with the bytes.
  static StatusOr<Safetensors> Parse(std::string bytes);
  static StatusOr<Safetensors> Load(const std::string& path);

  Safetensors(Safetensors&&) = default;
  Safetensors& operator=(Safetensors&&) = default;

  struct Entry {
    TensorMeta meta;
    size_t offset = 0;  // into bytes
  };
  const std::map<std::string, Entry>& entries() const { return entries_; }
  // nullptr when there is no such tensor.
  const Entry* Find(const std::string& name) const;
  const void* data(const Entry& entry) const { return bytes_.data() + entry.offset; }

 private:
  Safetensors() = default;
  std::string bytes_;
  std::map<std::string, Entry> entries_;
};

}  // namespace weft::ckpt
