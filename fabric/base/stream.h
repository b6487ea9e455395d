// StreamTag: an opaque handle of a device's work queue (a cudaStream_t there). The CPU has one, the
// null tag: work on it is done when the call returns.
#pragma once

namespace weft {

struct StreamTag {
  void* handle = nullptr;
};

}  // namespace weft
