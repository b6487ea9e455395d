#include "worker/core/alloc/caching_allocator.h"

#include <algorithm>

#include "absl/strings/str_format.h"

#include "fabric/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace weft {
namespace {

constexpr size_t kQuantum = 256;                // what small sizes are multiples of
constexpr size_t kSmallMost = size_t{1} << 20;  // largest size of the small pool
constexpr size_t kSegment = size_t{2} << 20;    // small blocks are cut from segments of this size
constexpr size_t kLargeLeftover = kSmallMost;  // a large block is split when more than this is left
constexpr int kHoldersInError = 4;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The address sanitiser does not know our blocks: tell it which bytes nobody may touch.
void Forbid([[maybe_unused]] DeviceId device, [[maybe_unused]] void* data,
            [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  if (device.kind == DeviceKind::kCpu) ASAN_POISON_MEMORY_REGION(data, bytes);
#endif
}
void Permit([[maybe_unused]] DeviceId device, [[maybe_unused]] void* data,
            [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  if (device.kind == DeviceKind::kCpu) ASAN_UNPOISON_MEMORY_REGION(data, bytes);
#endif
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return absl::StrFormat("%d B", bytes);
  double amount = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (amount >= 1024 && unit + 1 < std::size(kUnits)) {
    amount /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", amount, kUnits[unit]);
}

struct CachingAllocator::Block {
  char* data = nullptr;
  size_t bytes = 0;
  size_t requested = 0;
  BlockState state = BlockState::kFree;
  Segment* segment = nullptr;
  Block* prev = nullptr;  // neighbours by address within the segment
  Block* next = nullptr;
  std::string tag;
  std::vector<EventDone> events;
};

struct CachingAllocator::Segment {
  ~Segment() {
    for (Block* b = first; b != nullptr;) {
      Block* next = b->next;
      delete b;
      b = next;
    }
  }
  char* data = nullptr;
  size_t bytes = 0;
  bool small = false;
  Block* first = nullptr;
};

std::shared_ptr<CachingAllocator> CachingAllocator::Create(std::unique_ptr<MemorySource> source,
                                                           Options options) {
  return std::shared_ptr<CachingAllocator>(new CachingAllocator(std::move(source), options));
}

CachingAllocator::CachingAllocator(std::unique_ptr<MemorySource> source, Options options)
    : source_(std::move(source)), options_(options), device_(source_->device()) {}

CachingAllocator::~CachingAllocator() {
  // Buffers hold references to the allocator, so none is live; what is deferred belongs to queued
  // work that the owner of the device has waited for before it lets go of its memory.
  absl::MutexLock lock(&mutex_);
  WEFT_CHECK(live_.empty());
  for (auto& [data, segment] : segments_) {
    Permit(device_, segment->data, segment->bytes);
    source_->Return(segment->data, segment->bytes);
  }
}

size_t CachingAllocator::ClassSize(size_t bytes) {
  if (bytes <= kSmallMost) return RoundUp(std::max<size_t>(bytes, 1), kQuantum);
  size_t power = kSmallMost;
  while (power < bytes / 2 + bytes % 2) power *= 2;  // power < bytes <= 2 * power
  return RoundUp(bytes, power / 8);
}

bool CachingAllocator::IsSmall(size_t size) { return size <= kSmallMost; }

StatusOr<Buffer> CachingAllocator::Allocate(size_t bytes, absl::string_view tag) {
  if (bytes > size_t{1} << 48) {
    return InvalidArgument("allocation of ", bytes, " bytes for ", tag, ": no device has as much");
  }
  const size_t size = ClassSize(bytes);
  Block* block = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    ++stats_.allocations;
    PollLocked();
    block = TakeFree(size);
    if (block != nullptr) {
      ++stats_.cache_hits;
    } else {
      StatusOr<Block*> fresh = TakeNew(size);
      if (!fresh.ok()) {
        TrimLocked();
        fresh = TakeNew(size);
      }
      if (!fresh.ok()) {
        ++stats_.failures;
        return Annotate(ExhaustedLocked(bytes, fresh.status()), tag);
      }
      block = *fresh;
    }
    MarkLive(block, bytes, tag);
  }
  auto self = shared_from_this();
  return Buffer(block->data, bytes, device_,
                [self = std::move(self)](void* data, size_t) { self->Release(data); });
}

CachingAllocator::Block* CachingAllocator::TakeFree(size_t size) {
  FreeSet& pool = PoolFor(IsSmall(size));
  const auto it = pool.lower_bound({size, nullptr});
  if (it == pool.end()) return nullptr;
  Block* block = it->second;
  pool.erase(it);
  SplitTail(block, size);
  return block;
}

StatusOr<void*> CachingAllocator::ObtainWithinCap(size_t bytes) {
  if (static_cast<int64_t>(bytes) > options_.cap_bytes - stats_.reserved_bytes) {
    return ResourceExhausted("the cap is ", FormatBytes(options_.cap_bytes), " and ",
                             FormatBytes(stats_.reserved_bytes), " are reserved");
  }
  return source_->Obtain(bytes);
}

StatusOr<CachingAllocator::Block*> CachingAllocator::TakeNew(size_t size) {
  size_t bytes = IsSmall(size) ? kSegment : RoundUp(size, kSegment);
  StatusOr<void*> data = ObtainWithinCap(bytes);
  if (!data.ok() && bytes != size) {
    // Near the cap a segment of just this block may still fit.
    bytes = size;
    data = ObtainWithinCap(bytes);
  }
  if (!data.ok()) return data.status();
  auto segment = std::make_unique<Segment>();
  segment->data = static_cast<char*>(*data);
  segment->bytes = bytes;
  segment->small = IsSmall(size);
  Block* block = new Block;
  block->data = segment->data;
  block->bytes = bytes;
  block->segment = segment.get();
  segment->first = block;
  segments_.emplace(segment->data, std::move(segment));
  ++stats_.segments;
  stats_.reserved_bytes += static_cast<int64_t>(bytes);
  stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
  Forbid(device_, block->data, bytes);
  SplitTail(block, size);
  return block;
}

void CachingAllocator::SplitTail(Block* block, size_t size) {
  const size_t left = block->bytes - size;
  if (left < (block->segment->small ? kQuantum : kLargeLeftover)) return;
  Block* tail = new Block;
  tail->data = block->data + size;
  tail->bytes = left;
  tail->segment = block->segment;
  tail->prev = block;
  tail->next = block->next;
  if (tail->next != nullptr) tail->next->prev = tail;
  block->next = tail;
  block->bytes = size;
  InsertFree(tail);
  ++stats_.splits;
}

void CachingAllocator::InsertFree(Block* block) {
  PoolFor(block->segment->small).emplace(std::make_pair(block->bytes, block->data), block);
}

void CachingAllocator::EraseFree(Block* block) {
  PoolFor(block->segment->small).erase({block->bytes, block->data});
}

void CachingAllocator::MergeNext(Block* block) {
  Block* next = block->next;
  block->bytes += next->bytes;
  block->next = next->next;
  if (block->next != nullptr) block->next->prev = block;
  delete next;
  ++stats_.coalesces;
}

void CachingAllocator::FreeBlock(Block* block) {
  Forbid(device_, block->data, block->bytes);
  block->state = BlockState::kFree;
  block->requested = 0;
  block->tag.clear();
  block->events.clear();
  if (block->next != nullptr && block->next->state == BlockState::kFree) {
    EraseFree(block->next);
    MergeNext(block);
  }
  if (block->prev != nullptr && block->prev->state == BlockState::kFree) {
    block = block->prev;
    EraseFree(block);
    MergeNext(block);
  }
  InsertFree(block);
}

void CachingAllocator::MarkLive(Block* block, size_t requested, absl::string_view tag) {
  block->state = BlockState::kLive;
  block->requested = requested;
  block->tag.assign(tag.data(), tag.size());
  live_.emplace(block->data, block);
  ++stats_.live_blocks;
  stats_.live_bytes += static_cast<int64_t>(block->bytes);
  stats_.requested_bytes += static_cast<int64_t>(requested);
  stats_.peak_live_bytes =
      std::max(stats_.peak_live_bytes, stats_.live_bytes + stats_.deferred_bytes);
  Permit(device_, block->data, std::max<size_t>(requested, 1));
}

void CachingAllocator::Release(void* data) {
  absl::MutexLock lock(&mutex_);
  const auto it = live_.find(data);
  WEFT_CHECK(it != live_.end());
  Block* block = it->second;
  live_.erase(it);
  --stats_.live_blocks;
  stats_.live_bytes -= static_cast<int64_t>(block->bytes);
  stats_.requested_bytes -= static_cast<int64_t>(block->requested);
  if (block->events.empty()) {
    FreeBlock(block);
    return;
  }
  block->state = BlockState::kDeferred;
  deferred_.push_back(block);
  ++stats_.deferred_blocks;
  stats_.deferred_bytes += static_cast<int64_t>(block->bytes);
}

void CachingAllocator::DeferFree(const Buffer& buffer, EventDone done) {
  absl::MutexLock lock(&mutex_);
  const auto it = live_.find(buffer.data());
  WEFT_CHECK(it != live_.end());
  it->second->events.push_back(std::move(done));
}

void CachingAllocator::Poll() {
  absl::MutexLock lock(&mutex_);
  PollLocked();
}

void CachingAllocator::PollLocked() {
  for (auto it = deferred_.begin(); it != deferred_.end();) {
    Block* block = *it;
    auto& events = block->events;
    while (!events.empty() && events.back()()) events.pop_back();
    if (!events.empty()) {
      ++it;
      continue;
    }
    --stats_.deferred_blocks;
    stats_.deferred_bytes -= static_cast<int64_t>(block->bytes);
    it = deferred_.erase(it);
    FreeBlock(block);
  }
}

int64_t CachingAllocator::Trim() {
  absl::MutexLock lock(&mutex_);
  PollLocked();
  return TrimLocked();
}

int64_t CachingAllocator::TrimLocked() {
  int64_t returned = 0;
  ++stats_.trims;
  for (auto it = segments_.begin(); it != segments_.end();) {
    Segment& segment = *it->second;
    if (segment.first->state != BlockState::kFree || segment.first->next != nullptr) {
      ++it;
      continue;
    }
    EraseFree(segment.first);
    Permit(device_, segment.data, segment.bytes);
    source_->Return(segment.data, segment.bytes);
    returned += static_cast<int64_t>(segment.bytes);
    --stats_.segments;
    it = segments_.erase(it);
  }
  stats_.reserved_bytes -= returned;
  return returned;
}

std::vector<HolderInfo> CachingAllocator::HoldersLocked(int count) const {
  std::map<std::string, HolderInfo> by_tag;
  const auto add = [&by_tag](const Block* block) {
    HolderInfo& holder = by_tag[block->tag];
    holder.tag = block->tag;
    holder.bytes += static_cast<int64_t>(block->bytes);
    ++holder.blocks;
  };
  for (const auto& [data, block] : live_) add(block);
  for (const Block* block : deferred_) add(block);
  std::vector<HolderInfo> holders;
  for (auto& [tag, holder] : by_tag) holders.push_back(std::move(holder));
  std::stable_sort(holders.begin(), holders.end(),
                   [](const HolderInfo& a, const HolderInfo& b) { return a.bytes > b.bytes; });
  if (static_cast<int>(holders.size()) > count) holders.resize(count);
  return holders;
}

Status CachingAllocator::ExhaustedLocked(size_t bytes, const Status& cause) const {
  std::string message = absl::StrCat(
      "no room for ", FormatBytes(static_cast<int64_t>(bytes)), " on ", NameOf(device_.kind), ":",
      device_.index, " (", cause.message(), "); live ", FormatBytes(stats_.live_bytes),
      ", waiting for queued work ", FormatBytes(stats_.deferred_bytes), ", free but split up ",
      FormatBytes(stats_.reserved_bytes - stats_.live_bytes - stats_.deferred_bytes),
      "; largest holders:");
  const std::vector<HolderInfo> holders = HoldersLocked(kHoldersInError);
  for (size_t i = 0; i < holders.size(); ++i) {
    absl::StrAppend(&message, i == 0 ? " " : ", ", holders[i].tag, " ",
                    FormatBytes(holders[i].bytes), " in ", holders[i].blocks,
                    holders[i].blocks == 1 ? " block" : " blocks");
  }
  if (holders.empty()) message += " none";
  return ResourceExhausted(message);
}

AllocatorStats CachingAllocator::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

std::vector<HolderInfo> CachingAllocator::LargestHolders(int count) const {
  absl::MutexLock lock(&mutex_);
  return HoldersLocked(count);
}

std::vector<SegmentInfo> CachingAllocator::Snapshot() const {
  absl::MutexLock lock(&mutex_);
  std::vector<SegmentInfo> segments;
  for (const auto& [data, segment] : segments_) {
    SegmentInfo& info = segments.emplace_back();
    info.data = data;
    info.bytes = static_cast<int64_t>(segment->bytes);
    for (const Block* b = segment->first; b != nullptr; b = b->next) {
      info.blocks.push_back({b->data - segment->data, static_cast<int64_t>(b->bytes),
                             static_cast<int64_t>(b->requested), b->state, b->tag});
    }
  }
  return segments;
}

}  // namespace weft
