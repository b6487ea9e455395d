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

// Words of blocks [block, block + kBlocks) in element order. The same rounds as Philox(), written
// so that the compiler keeps blocks side by side in vectors.
HWY_INLINE void DrawWords(uint64_t key, uint64_t counter_hi, uint64_t block,
                          uint32_t (&words)[kGroup]) {
  uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    c0[i] = static_cast<uint32_t>(block + i);
    c1[i] = static_cast<uint32_t>((block + i) >> 32);
    c2[i] = static_cast<uint32_t>(counter_hi);
    c3[i] = static_cast<uint32_t>(counter_hi >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kBlocks; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<uint32_t>(p1);
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < kBlocks; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

// 64 standard normals out of 64 words.
HWY_INLINE void Normals(const uint32_t (&words)[kGroup], float (&z)[kGroup]) {
  constexpr int kPairs = kGroup / 2;
  HWY_ALIGN float radius[kPairs], turn[kPairs], sine[kPairs], cosine[kPairs];
  for (int i = 0; i < kPairs; ++i) {
    // In (0, 1], so that the logarithm is finite.
    radius[i] = (static_cast<float>(words[2 * i] >> 8) + 1.0f) * 0x1p-24f;
    turn[i] = UnitFloat(words[2 * i + 1]);
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
    HWY_ALIGN float z[kGroup];
    for (int64_t i = tile * kTileElements; i < end;) {
      const int64_t g = global + i;
      const int first = static_cast<int>(g % kGroup);
      const int64_t count = std::min<int64_t>(end - i, kGroup - first);
      DrawWords(key, counter_hi, static_cast<uint64_t>(g / kGroup * kBlocks), words);
      if (s.draw == Draw::kNormal) {
        Normals(words, z);
        for (int64_t k = 0; k < count; ++k) out[i + k] = z[first + k] * s.first;
      } else if (s.draw == Draw::kUniform) {
        for (int64_t k = 0; k < count; ++k) {
          out[i + k] = s.first + s.second * UnitFloat(words[first + k]);
        }
      } else {
        for (int64_t k = 0; k < count; ++k) {
          const float kept = in[i + k] * s.second;
          out[i + k] = UnitFloat(words[first + k]) >= s.first ? kept : 0.0f;
        }
      }
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
