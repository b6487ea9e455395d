#include "worker/core/ops/elementwise/copies.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/strided.h"

namespace weft {
namespace {

constexpr int64_t kBlock = 1024;

struct BF16 {
  uint16_t bits;
};

// Calls body with a value of the C++ type of `dtype`.
template <typename Body>
void WithType(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kF64:
      return body(double{});
    case DType::kBF16:
      return body(BF16{});
    case DType::kI32:
      return body(int32_t{});
    case DType::kI64:
      return body(int64_t{});
    case DType::kU8:
      return body(uint8_t{});
    case DType::kInvalid:
      return;
  }
}

// Calls body with an unsigned integer as wide as `dtype`, for moves.
template <typename Body>
void WithWidth(DType dtype, Body&& body) {
  switch (SizeOf(dtype)) {
    case 1:
      return body(uint8_t{});
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    default:
      return body(uint64_t{});
  }
}

float Widen(BF16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
template <typename T>
T Widen(T x) {
  return x;
}

BF16 RoundToBF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// To FP32 so that a second rounding still sees which side the value was on: inexact results are
// odd.
float RoundToOdd(double x) {
  const float near = static_cast<float>(x);
  if (near == x || x != x || near - near != 0) return near;
  uint32_t bits = std::bit_cast<uint32_t>(near);
  const bool away = (near < 0 ? -near : near) > (x < 0 ? -x : x);
  bits = (away ? bits - 1 : bits) | 1;
  return std::bit_cast<float>(bits);
}

template <typename To, typename From>
To SaturatingInteger(From x) {
  if (x != x) return 0;
  // The limits as floats: the lower one is exact, the upper one may round to one past it.
  constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
  constexpr From kHigh = static_cast<From>(std::numeric_limits<To>::max());
  if (x <= kLow) return std::numeric_limits<To>::min();
  if (x >= kHigh) return std::numeric_limits<To>::max();
  return static_cast<To>(x);
}

template <typename To, typename From>
To Convert(From stored) {
  const auto x = Widen(stored);
  using Wide = std::remove_const_t<decltype(x)>;
  if constexpr (std::is_same_v<To, BF16>) {
    if constexpr (std::is_same_v<Wide, float>) {
      return RoundToBF16(x);
    } else {
      return RoundToBF16(RoundToOdd(static_cast<double>(x)));
    }
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<Wide>) {
    return SaturatingInteger<To>(x);
  } else if constexpr (std::is_integral_v<To>) {
    const int64_t low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max();
    return static_cast<To>(std::clamp<int64_t>(x, low, high));
  } else {
    return static_cast<To>(x);
  }
}

Bound BindWalk(const std::string&, const BindArgs& args) {
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  return {.state = std::make_shared<Walk>(MakeWalk(args.out[0].shape, args.in, args.in_count))};
}

// Calls body(begin, end) for each tile of the result.
template <typename Body>
void ForTiles(const KernelArgs& args, int64_t elements, Body&& body) {
  args.tiles->For(CeilDiv(elements, kTileElements), [&](int64_t tile, int) {
    body(tile * kTileElements, std::min((tile + 1) * kTileElements, elements));
  });
}

int LaunchCopy(const void* state, const KernelArgs& args) {
  const Walk& walk = *static_cast<const Walk*>(state);
  WithWidth(args.out[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    T* const out = args.out[0].as<T>();
    ForTiles(args, walk.elements, [&](int64_t begin, int64_t end) {
      const T* from = WalkRun(walk, 0, args.in[0].as<T>(), begin, end - begin, out + begin);
      if (from != out + begin) std::memcpy(out + begin, from, (end - begin) * sizeof(T));
    });
  });
  return 0;
}

int LaunchCast(const void* state, const KernelArgs& args) {
  const Walk& walk = *static_cast<const Walk*>(state);
  WithType(args.in[0].dtype, [&](auto from_zero) {
    WithType(args.out[0].dtype, [&](auto to_zero) {
      using From = decltype(from_zero);
      using To = decltype(to_zero);
      To* const out = args.out[0].as<To>();
      ForTiles(args, walk.elements, [&](int64_t begin, int64_t end) {
        From buffer[kBlock];
        while (begin < end) {
          const int64_t count = BlockLength(walk, begin, end, kBlock);
          const From* from = WalkRun(walk, 0, args.in[0].as<From>(), begin, count, buffer);
          for (int64_t i = 0; i < count; ++i) out[begin + i] = Convert<To>(from[i]);
          begin += count;
        }
      });
    });
  });
  return 0;
}

Bound BindFill(const std::string&, const BindArgs& args) {
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  return {.state = std::make_shared<double>(args.attrs->GetFloat("value"))};
}

int LaunchFill(const void* state, const KernelArgs& args) {
  const double value = *static_cast<const double*>(state);
  WithType(args.out[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    T* const out = args.out[0].as<T>();
    const T element = Convert<T>(value);
    ForTiles(args, args.out[0].elements(),
             [&](int64_t begin, int64_t end) { std::fill(out + begin, out + end, element); });
  });
  return 0;
}

}  // namespace

void RegisterCopiesCpu(KernelTable* table) {
  table->Add("copy", DeviceKind::kCpu, {nullptr, BindWalk, LaunchCopy, true});
  table->Add("cast", DeviceKind::kCpu, {nullptr, BindWalk, LaunchCast, true});
  table->Add("fill", DeviceKind::kCpu, {nullptr, BindFill, LaunchFill, true});
}

}  // namespace weft
