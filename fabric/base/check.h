// WEFT_CHECK: broken invariants of ours only; never on anything that came from outside the process.
#pragma once

namespace weft::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace weft::internal

#define WEFT_CHECK(condition)                                        \
  do {                                                               \
    if (!(condition)) [[unlikely]]                                   \
      ::weft::internal::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)
