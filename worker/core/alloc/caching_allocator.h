// CachingAllocator: hands out blocks of a device's memory and keeps what comes back for the next
// caller.
//
// Sizes are rounded up to classes: multiples of 256 bytes up to 1 MiB, then eight steps to each
// power of two. A block is the best fit among the free ones of its pool (small and large requests
// do not mix, so that short-lived small blocks do not hold large segments), split when enough is
// left over; when it is freed it merges with free neighbours of its segment.
//
// A block may still be read by queued work when its holder drops it. Whoever queues that work says
// so with DeferFree; the block then becomes free only once every such event is done. On the CPU
// work is done when the call returns, so nothing is deferred there.
//
// Owns its segments. Buffers keep the allocator alive, so they may outlive every other reference to
// it. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "fabric/base/buffer.h"
#include "fabric/base/status.h"
#include "worker/core/alloc/allocator_stats.h"
#include "worker/core/alloc/memory_source.h"

namespace weft {

class CachingAllocator : public std::enable_shared_from_this<CachingAllocator> {
 public:
  struct Options {
    int64_t cap_bytes = std::numeric_limits<int64_t>::max();  // of reserved memory
  };
  // Whether the work that uses a block has ended. Once true it stays true. Called under the
  // allocator's lock, so it must not call back.
  using EventDone = std::function<bool()>;

  static std::shared_ptr<CachingAllocator> Create(std::unique_ptr<MemorySource> source,
                                                  Options options);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // At least one byte, aligned as the source is. `tag` names the holder in statistics and errors.
  // ResourceExhausted, after one trim and retry, when the cap or the device leaves no room; the
  // message names the largest holders.
  StatusOr<Buffer> Allocate(size_t bytes, absl::string_view tag) ABSL_LOCKS_EXCLUDED(mutex_);

  // Keeps the block of `buffer`, which is this allocator's, from reuse until `done`, even when all
  // references to it are dropped before.
  void DeferFree(const Buffer& buffer, EventDone done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees the deferred blocks whose events are done. Allocate does this by itself.
  void Poll() ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives wholly free segments back to the device. Returns how many bytes those were.
  int64_t Trim() ABSL_LOCKS_EXCLUDED(mutex_);

  AllocatorStats stats() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<SegmentInfo> Snapshot() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The `count` tags that hold most, largest first.
  std::vector<HolderInfo> LargestHolders(int count) const ABSL_LOCKS_EXCLUDED(mutex_);
  DeviceId device() const { return device_; }

  // What a request of `bytes` takes.
  static size_t ClassSize(size_t bytes);

 private:
  struct Block;
  struct Segment;
  // Free blocks by size, then address: the first that fits is the best fit, and ties are
  // deterministic.
  using FreeSet = std::map<std::pair<size_t, const void*>, Block*>;

  CachingAllocator(std::unique_ptr<MemorySource> source, Options options);

  static bool IsSmall(size_t size);
  FreeSet& PoolFor(bool small) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return small ? small_free_ : large_free_;
  }
  Block* TakeFree(size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  StatusOr<Block*> TakeNew(size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  StatusOr<void*> ObtainWithinCap(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SplitTail(Block* block, size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void InsertFree(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseFree(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MergeNext(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FreeBlock(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MarkLive(Block* block, size_t requested, absl::string_view tag)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PollLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t TrimLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<HolderInfo> HoldersLocked(int count) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status ExhaustedLocked(size_t bytes, const Status& cause) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(void* data) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<MemorySource> source_;
  const Options options_;
  const DeviceId device_;

  mutable absl::Mutex mutex_;
  std::map<const void*, std::unique_ptr<Segment>> segments_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<const void*, Block*> live_ ABSL_GUARDED_BY(mutex_);  // by data pointer
  std::list<Block*> deferred_ ABSL_GUARDED_BY(mutex_);                     // in the order of drops
  FreeSet small_free_ ABSL_GUARDED_BY(mutex_);
  FreeSet large_free_ ABSL_GUARDED_BY(mutex_);
  AllocatorStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft
