// Buffer: ref-counted bytes on a device. What storage is made of and what a collective sees.
// Thread-safe to copy and destroy; the bytes are not guarded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "fabric/base/device_id.h"

namespace weft {

class Buffer {
 public:
  using Deleter = std::function<void(void* data, size_t bytes)>;

  Buffer() = default;
  // Owns `data` through `deleter`, which runs once, on the thread that drops the last reference.
  Buffer(void* data, size_t bytes, DeviceId device, Deleter deleter)
      : block_(std::make_shared<Block>(data, bytes, device, std::move(deleter))) {}

  void* data() const { return block_ ? block_->data : nullptr; }
  size_t bytes() const { return block_ ? block_->bytes : 0; }
  DeviceId device() const { return block_ ? block_->device : DeviceId{}; }
  explicit operator bool() const { return block_ != nullptr; }

 private:
  struct Block {
    Block(void* d, size_t b, DeviceId dev, Deleter del)
        : data(d), bytes(b), device(dev), deleter(std::move(del)) {}
    ~Block() {
      if (deleter) deleter(data, bytes);
    }
    Block(const Block&) = delete;
    void* data;
    size_t bytes;
    DeviceId device;
    Deleter deleter;
  };
  std::shared_ptr<Block> block_;
};

}  // namespace weft
