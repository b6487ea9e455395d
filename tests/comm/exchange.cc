#include "tests/comm/exchange.h"

#include <cstring>

namespace weft::comm {
namespace {

int64_t ValueAt(int32_t rank, int64_t i) { return (i * 7 + rank * 31 + 3) % 101; }

// Element i of `dtype` holding `value`; bytes and bf16 take its low bits, as they are never added.
void Store(DType dtype, std::byte* base, int64_t i, int64_t value) {
  const auto put = [&](auto typed) {
    std::memcpy(base + i * static_cast<int64_t>(sizeof(typed)), &typed, sizeof(typed));
  };
  switch (dtype) {
    case DType::kF32:
      return put(static_cast<float>(value));
    case DType::kF64:
      return put(static_cast<double>(value));
    case DType::kI32:
      return put(static_cast<int32_t>(value));
    case DType::kI64:
      return put(static_cast<int64_t>(value));
    case DType::kBF16:
      return put(static_cast<uint16_t>(value));
    default:
      return put(static_cast<uint8_t>(value));
  }
}

template <typename F>
std::vector<std::byte> Fill(DType dtype, int64_t count, F value) {
  std::vector<std::byte> bytes(count * SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) Store(dtype, bytes.data(), i, value(i));
  return bytes;
}

int64_t SumAt(int32_t size, int64_t i) {
  int64_t sum = 0;
  for (int32_t rank = 0; rank < size; ++rank) sum += ValueAt(rank, i);
  return sum;
}

int32_t OwnerOf(int64_t count, int32_t size, int64_t i) {
  return static_cast<int32_t>(i / ChunkOf(count, size, 0).size);
}

}  // namespace

Exchange MakeExchange(const CollectiveCall& call, int32_t rank, int32_t size) {
  const DType dtype = call.dtype;
  const int64_t n = call.count;
  const auto own = [&](int64_t i) { return ValueAt(rank, i); };
  const Chunk chunk = ChunkOf(n, size, rank);
  Exchange x;
  switch (call.kind) {
    case Kind::kAllReduce:
      x.send = Fill(dtype, n, own);
      x.expected = Fill(dtype, n, [&](int64_t i) { return SumAt(size, i); });
      break;
    case Kind::kReduceScatter:
      x.send = Fill(dtype, n, own);
      x.expected = Fill(dtype, chunk.size, [&](int64_t i) { return SumAt(size, chunk.begin + i); });
      break;
    case Kind::kAllGather:
      x.send = Fill(dtype, chunk.size, [&](int64_t i) { return own(chunk.begin + i); });
      x.expected = Fill(dtype, n, [&](int64_t i) { return ValueAt(OwnerOf(n, size, i), i); });
      break;
    case Kind::kBroadcast:
      x.expected = Fill(dtype, n, [&](int64_t i) { return ValueAt(call.peer, i); });
      x.recv = rank == call.peer ? x.expected : std::vector<std::byte>(x.expected.size());
      return x;
    case Kind::kAllToAll: {
      const int64_t each = n / size;
      x.send = Fill(dtype, n, own);
      // Chunk r of what rank r's peers send: element rank * each + j of rank r = i / each.
      x.expected = Fill(dtype, n, [&](int64_t i) {
        return ValueAt(static_cast<int32_t>(i / each), rank * each + i % each);
      });
      break;
    }
    case Kind::kSend:
      x.send = Fill(dtype, n, own);
      break;
    case Kind::kRecv:
      x.expected = Fill(dtype, n, [&](int64_t i) { return ValueAt(call.peer, i); });
      break;
    case Kind::kBarrier:
      break;
  }
  x.recv.resize(x.expected.size());
  return x;
}

std::vector<CollectiveCall> CallsOf(const CommCase& row, int32_t rank, int32_t size) {
  CollectiveCall call;
  call.kind = row.kind;
  call.dtype = row.dtype;
  call.count = row.kind == Kind::kAllToAll ? row.count * size : row.count;
  call.order = row.order;
  call.label = "case";
  if (row.kind == Kind::kBroadcast) call.peer = static_cast<int32_t>(row.count % size);
  if (row.kind != Kind::kSend && row.kind != Kind::kRecv) return {call};
  std::vector<CollectiveCall> calls;
  const int32_t step = row.kind == Kind::kSend ? 1 : -1;
  const int32_t from = rank - step, to = rank + step;
  if (from >= 0 && from < size) {
    call.kind = Kind::kRecv;
    call.peer = from;
    calls.push_back(call);
  }
  if (to >= 0 && to < size) {
    call.kind = Kind::kSend;
    call.peer = to;
    calls.push_back(call);
  }
  return calls;
}

}  // namespace weft::comm
