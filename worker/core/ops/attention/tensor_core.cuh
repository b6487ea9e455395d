// Instructions of tensor cores and of copies to shared memory, one function each.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

namespace weft::attention {

using bf16 = __nv_bfloat16;

// sums += left * right: m16n8k16 of bf16.
__device__ __forceinline__ void MultiplyBf16(float (&sums)[4], const uint32_t (&left)[4],
                                             const uint32_t (&right)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}

// sums += left * right: m16n8k8 of TF32.
__device__ __forceinline__ void MultiplyTf32(float (&sums)[4], const uint32_t (&left)[4],
                                             const uint32_t (&right)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}

// The bits of x as TF32, to nearest.
__device__ __forceinline__ uint32_t RoundToTf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(bits) : "f"(x));
  return bits;
}

// Four matrices of 8 rows of 16 bytes; lanes 8 i to 8 i + 7 name the rows of matrix i. Of each a
// lane gets word lane % 4 of row lane / 4.
__device__ __forceinline__ void LoadMatrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
}
// The same of their transposes, of 8 by 8 bf16.
__device__ __forceinline__ void LoadTransposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
}

// Starts a copy of 16 bytes to shared memory, of zeros unless `valid`.
__device__ __forceinline__ void CopyChunk(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
// The same of one float.
__device__ __forceinline__ void CopyFloat(float* to, const float* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(valid ? 4 : 0)
               : "memory");
}
// Ends a group of copies.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
// Waits until at most the latest kPending groups are on their way.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Blocks that take turns: waits until the word is `value`, with all that came before its Signal
// visible; sets it, with all before made visible. One thread of a block, barriers for the others.
__device__ __forceinline__ void WaitUntil(const int* word, int value) {
  int now;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(now) : "l"(word) : "memory");
  } while (now != value);
}
__device__ __forceinline__ void Signal(int* word, int value) {
  __threadfence();
  asm volatile("st.release.gpu.global.s32 [%0], %1;\n" ::"l"(word), "r"(value) : "memory");
}

// 2^x, to 2 ulp; tiny results are zero.
__device__ __forceinline__ float PowerOfTwo(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// To nearest, `low` in the lower half.
__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace weft::attention
