// Random numbers in groups of 64 global elements: 16 Philox blocks side by side. Element g is word
// g % 4 of block g / 4 of the stream (seed, key, step); pairs of elements share one Box-Muller
// draw.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/core/ops/random/cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants this order.
#include <algorithm>

#include "hwy/highway.h"

#include "fabric/base/philox.h"
#include "worker/core/dispatch/kernel_args.h"
#include "worker/core/ops/random/state.h"
#include "worker/core/ops/strided.h"
#include "worker/core/ops/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

constexpr int kBlocks = 16;
constexpr int kGroup = 4 * kBlocks;

// Words of blocks [block, block + kBlocks) in element order.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void DrawWords(uint64_t key, uint64_t counter_hi, uint64_t block,
                          uint32_t* HWY_RESTRICT words) {
  for (int i = 0; i < kBlocks; ++i) {
    const PhiloxBlock drawn = Philox(key, counter_hi, block + i);
    for (int w = 0; w < 4; ++w) words[4 * i + w] = drawn.word[w];
  }
}
#else
// The rounds of Philox(), one block a 64-bit lane. Upper halves hold rubbish, which the products do
// not look at.
HWY_INLINE void DrawWords(uint64_t key, uint64_t counter_hi, uint64_t block,
                          uint32_t* HWY_RESTRICT words) {
  const hn::CappedTag<uint64_t, kBlocks> d;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const auto product = [&](auto c, uint64_t factor) HWY_ATTR {
    return hn::MulEven(hn::BitCast(d32, c), hn::BitCast(d32, hn::Set(d, factor)));
  };
  const auto low = hn::Set(d, 0xFFFFFFFFull);
  for (size_t i = 0; i < kBlocks; i += hn::Lanes(d)) {
    auto c0 = hn::Iota(d, block + i);
    auto c1 = hn::ShiftRight<32>(c0);
    auto c2 = hn::Set(d, counter_hi);
    auto c3 = hn::Set(d, counter_hi >> 32);
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const auto p0 = product(c0, 0xD2511F53u);
      const auto p1 = product(c2, 0xCD9E8D57u);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(d, k0));
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(d, k1));
      c1 = p1;
      c3 = p0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const auto first = hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1));
    const auto second = hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3));
    hn::StoreInterleaved2(first, second, d, reinterpret_cast<uint64_t*>(words + 4 * i));
  }
}
#endif

// As UnitFloat(), by way of a signed number, which every instruction set converts in vectors.
HWY_INLINE float Unit(uint32_t word) {
  return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f;
}

// 64 standard normals out of 64 words.
HWY_INLINE void Normals(const uint32_t (&words)[kGroup], float (&z)[kGroup]) {
  constexpr int kPairs = kGroup / 2;
  HWY_ALIGN float radius[kPairs], turn[kPairs], sine[kPairs], cosine[kPairs];
  for (int i = 0; i < kPairs; ++i) {
    // In (0, 1], so that the logarithm is finite.
    radius[i] = Unit(words[2 * i]) + 0x1p-24f;
    turn[i] = Unit(words[2 * i + 1]);
  }
  const hn::CappedTag<float, kPairs> d;
  for (size_t i = 0; i < kPairs; i += hn::Lanes(d)) {
    const auto r = hn::Sqrt(hn::Mul(LogOf(d, hn::Load(d, radius + i)), hn::Set(d, -2.0f)));
    auto s = r, c = r;
    SinCosTurns(d, hn::Load(d, turn + i), &s, &c);
    hn::Store(hn::Mul(r, c), d, cosine + i);
    hn::Store(hn::Mul(r, s), d, sine + i);
  }
  for (int i = 0; i < kPairs; ++i) {
    z[2 * i] = cosine[i];
    z[2 * i + 1] = sine[i];
  }
}

// Results [first, first + count) of a group of 64, from its words; `in` and `out` are at the first
// one.
HWY_INLINE void Deliver(const RandomState& s, const uint32_t (&words)[kGroup], int first,
                        int64_t count, const float* HWY_RESTRICT in, float* HWY_RESTRICT out) {
  const float a = s.first, b = s.second;
  if (s.draw == Draw::kNormal) {
    HWY_ALIGN float z[kGroup];
    Normals(words, z);
    for (int64_t k = 0; k < count; ++k) out[k] = z[first + k] * a;
  } else if (s.draw == Draw::kUniform) {
    for (int64_t k = 0; k < count; ++k) out[k] = a + b * Unit(words[first + k]);
  } else {
    for (int64_t k = 0; k < count; ++k) {
      const float kept = in[k] * b;
      out[k] = Unit(words[first + k]) >= a ? kept : 0.0f;
    }
  }
}

void LaunchRandom(const RandomState& s, const KernelArgs& args) {
  // Seed, op and step pick a stream by a draw of their own.
  const PhiloxBlock stream = Philox(args.step.seed, s.key, static_cast<uint64_t>(args.step.step));
  const uint64_t key = stream.word[0] | uint64_t{stream.word[1]} << 32;
  const uint64_t counter_hi = stream.word[2] | uint64_t{stream.word[3]} << 32;
  const int64_t global = args.step.first_row * s.row_elements;
  float* const out = args.out[0].as<float>();
  const float* const in = s.draw == Draw::kDropout ? args.in[0].as<float>() : nullptr;
  args.tiles->For(CeilDiv(s.elements, kTileElements), [&](int64_t tile, int) {
    const int64_t end = std::min((tile + 1) * kTileElements, s.elements);
    HWY_ALIGN uint32_t words[kGroup];
    for (int64_t i = tile * kTileElements; i < end;) {
      const int64_t g = global + i;
      const int first = static_cast<int>(g % kGroup);
      const int64_t count = std::min<int64_t>(end - i, kGroup - first);
      DrawWords(key, counter_hi, static_cast<uint64_t>(g / kGroup * kBlocks), words);
      Deliver(s, words, first, count, in == nullptr ? nullptr : in + i, out + i);
      i += count;
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <memory>
#include <string>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

HWY_EXPORT(LaunchRandom);

template <Draw kDraw>
Bound BindDraw(const std::string&, const BindArgs& args) {
  const ArrayRef& out = args.out[0];
  if (out.dtype != DType::kF32) return {.error = "draws f32 only"};
  if (!out.contiguous()) return {.error = "the result is not contiguous"};
  if (args.in_count > 0 && !args.in[0].contiguous()) return {.error = "x is not contiguous"};
  auto s = std::make_shared<RandomState>();
  s->draw = kDraw;
  s->key = static_cast<uint64_t>(args.attrs->GetInt("key"));
  s->elements = out.elements();
  if (out.shape.rank() > 0 && out.shape.dim(0) > 0) {
    s->row_elements = s->elements / out.shape.dim(0);
  }
  if constexpr (kDraw == Draw::kUniform) {
    const double low = args.attrs->GetFloat("low");
    s->first = static_cast<float>(low);
    s->second = static_cast<float>(args.attrs->GetFloat("high") - low);
  } else if constexpr (kDraw == Draw::kNormal) {
    s->first = static_cast<float>(args.attrs->GetFloat("std"));
  } else {
    const double p = args.attrs->GetFloat("p");
    s->first = static_cast<float>(p);
    s->second = static_cast<float>(1.0 / (1.0 - p));
  }
  return {.state = std::move(s)};
}

int Launch(const void* state, const KernelArgs& args) {
  HWY_DYNAMIC_DISPATCH(LaunchRandom)(*static_cast<const RandomState*>(state), args);
  return 0;
}

}  // namespace

void RegisterRandomCpu(KernelTable* table) {
  table->Add("uniform", DeviceKind::kCpu, {nullptr, BindDraw<Draw::kUniform>, Launch});
  table->Add("normal", DeviceKind::kCpu, {nullptr, BindDraw<Draw::kNormal>, Launch});
  table->Add("dropout", DeviceKind::kCpu, {nullptr, BindDraw<Draw::kDropout>, Launch});
}

}  // namespace weft
#endif  // HWY_ONCE
