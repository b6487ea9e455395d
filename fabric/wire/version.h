// The version of this build, the same in all programs.
#pragma once

namespace weft::wire {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace weft::wire
