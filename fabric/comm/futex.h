// Sleeping on a word in memory that processes may share.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace weft::comm {

// Sleeps while `word` is `value`, at most `timeout`; may return early for no reason.
void FutexWait(std::atomic<uint32_t>& word, uint32_t value, absl::Duration timeout);
void FutexWakeAll(std::atomic<uint32_t>& word);

}  // namespace weft::comm
