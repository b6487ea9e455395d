// Times all_reduce between processes of this machine and prints one table: backend, order, ranks,
// bytes, and the median and 10-90 % range of rank 0's time for a call.
//
//   collectives_bench [seconds per row]

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

#include "fabric/comm/comm_registry.h"

namespace weft::comm {
namespace {

constexpr int64_t kSizes[] = {4 << 10, 1 << 20, 1600000, 26 << 20};

struct Row {
  const CommBackend* backend;
  Order order;
  int32_t ranks;
  int64_t bytes;
};

// Calls that fit the time, by what they cost about.
int CallsFor(const Row& row, double seconds) {
  const double guess = 20e-6 + static_cast<double>(row.bytes) * row.ranks / 1.5e9;
  return std::clamp(static_cast<int>(seconds / guess), 15, 5000);
}

Status RunRank(Communicator& rank, const Row& row, int calls) {
  std::vector<float> data(row.bytes / sizeof(float), 1.0f);
  std::vector<float> sums(data.size());
  CollectiveCall call;
  call.kind = Kind::kAllReduce;
  call.dtype = DType::kF32;
  call.count = static_cast<int64_t>(data.size());
  call.send = data.data();
  call.recv = sums.data();
  call.order = row.order;
  std::vector<double> times;
  for (int i = -5; i < calls; ++i) {
    const absl::Time start = absl::Now();
    RETURN_IF_ERROR(rank.Launch(call, {}, Deadline::After(absl::Seconds(60))));
    if (i >= 0) times.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
  }
  for (const float sum : sums) {
    if (sum != static_cast<float>(row.ranks)) return Internal("wrong sum");
  }
  if (rank.rank() != 0) return absl::OkStatus();
  std::sort(times.begin(), times.end());
  const auto at = [&](double part) { return times[static_cast<size_t>(part * (calls - 1))]; };
  std::printf("%-4s %-8s %5d %10lld %10.3f  %.3f-%.3f  (%d calls)\n", row.backend->name,
              row.order == Order::kOrdered ? "ordered" : "ring", row.ranks,
              static_cast<long long>(row.bytes), at(0.5), at(0.1), at(0.9), calls);
  std::fflush(stdout);
  return absl::OkStatus();
}

Status JoinAndRun(GroupSpec spec, std::unique_ptr<TcpListener> listener, const Row& row,
                  int calls) {
  spec.deadline = Deadline::After(absl::Seconds(20));
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> rank,
                   row.backend->join(spec, std::move(listener)));
  return RunRank(*rank, row, calls);
}

Status RunRow(const Row& row, double seconds) {
  GroupSpec spec;
  spec.size = row.ranks;
  spec.secret = "bench";
  std::vector<std::unique_ptr<TcpListener>> listeners(row.ranks);
  for (int32_t rank = 0; rank < row.ranks; ++rank) {
    ASSIGN_OR_RETURN(listeners[rank], TcpListener::Open("127.0.0.1"));
    spec.endpoints.push_back(listeners[rank]->endpoint());
  }
  spec.shared_memory_fd = memfd_create("bench", MFD_CLOEXEC);
  if (ftruncate(spec.shared_memory_fd, SharedMemoryBytes(row.ranks)) != 0) {
    return Internal("no shared memory");
  }
  std::vector<pid_t> children;
  for (int32_t rank = 0; rank < row.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      spec.rank = rank;
      const Status status =
          JoinAndRun(spec, std::move(listeners[rank]), row, CallsFor(row, seconds));
      if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
      _exit(status.ok() ? 0 : 1);
    }
    children.push_back(child);
  }
  close(spec.shared_memory_fd);
  Status all;
  for (const pid_t child : children) {
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) all = Internal("a rank failed");
  }
  return all;
}

int Main(double seconds) {
  std::printf("%-4s %-8s %5s %10s %10s  p10-p90 [ms]\n", "", "order", "ranks", "bytes", "p50 [ms]");
  std::fflush(stdout);
  for (const std::string& name : CommBackendNames()) {
    for (const Order order : {Order::kRing, Order::kOrdered}) {
      for (const int32_t ranks : {2, 4}) {
        for (const int64_t bytes : kSizes) {
          const Status status = RunRow({*FindCommBackend(name), order, ranks, bytes}, seconds);
          if (!status.ok()) return 1;
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace weft::comm

int main(int argc, char** argv) { return weft::comm::Main(argc > 1 ? std::atof(argv[1]) : 1.0); }
