// The two ways of the embedding's gradient on CUDA; which one is faster, shapes tell. Both add the
// rows of dy in a fixed order, without atomics of floats, and write every row of the table.
//   Scan (small tables): a block looks at every id for those of its table row.
//   Sort (others): positions are sorted by id, and slices of the sorted list are added up.
#pragma once

#include <cstdint>

#include "worker/core/dispatch/kernel_args.h"
#include "worker/core/ops/index/state.h"

namespace weft {

struct ScanCut {
  int lanes = 1;  // threads across the columns of a strip
  int64_t strips = 1;
  int64_t segment = 0;   // positions
  int64_t segments = 1;  // blocks of a cluster
};
ScanCut CutScan(const EmbeddingState& s, DType dtype);
// `args` are those of embedding_grad. An error is the runtime's last one.
void LaunchScan(const EmbeddingState& s, const ScanCut& cut, const KernelArgs& args);

struct SortCut {
  int lanes = 1;  // threads across the columns of a strip
  int64_t strips = 1;
  int64_t chunks = 0;  // of positions, a block each
  int64_t slices = 0;  // of sorted positions
  int passes = 1, bits = 1;
  // Scratch: keys and positions twice, counts, partial sums; in words of 4 bytes.
  int64_t counts = 0, partials = 0, words = 0;
};
SortCut CutSort(const EmbeddingState& s, DType dtype);
void LaunchSort(const EmbeddingState& s, const SortCut& cut, const KernelArgs& args);

}  // namespace weft
