// Ranks as processes: one is killed in the middle of a call, the others learn which one.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "fabric/base/error_detail.h"
#include "fabric/comm/comm_registry.h"
#include "tests/comm/test_group.h"
#include "tests/support/status_matchers.h"

namespace weft::comm {
namespace {

constexpr int32_t kRanks = 3;
constexpr int32_t kVictim = 1;

// Sums until something fails; says on `ready` when a few sums are done.
Status SumForever(Communicator& rank, Order order, int ready) {
  std::vector<float> data(200003, 1.0f), sums(data.size());
  CollectiveCall call;
  call.kind = Kind::kAllReduce;
  call.count = static_cast<int64_t>(data.size());
  call.send = data.data();
  call.recv = sums.data();
  call.order = order;
  for (int i = 0;; ++i) {
    RETURN_IF_ERROR(rank.Launch(call, {}, TestDeadline()));
    if (sums.back() != kRanks) return Internal("wrong sum");
    if (i == 3 && write(ready, "x", 1) != 1) return Internal("the test is gone");
  }
}

// The child's whole life; its exit status is 0 when it saw what it must.
int RunChild(GroupSpec spec, const CommBackend& backend, std::unique_ptr<TcpListener> listener,
             Order order, int ready) {
  spec.deadline = TestDeadline();
  StatusOr<std::unique_ptr<Communicator>> rank = backend.join(spec, std::move(listener));
  const Status status = rank.ok() ? SumForever(**rank, order, ready) : rank.status();
  const auto detail = GetErrorDetail(status);
  const bool named = detail.has_value() && detail->rank == kVictim &&
                     std::string(status.message()).find("rank 1 is gone") != std::string::npos;
  if (absl::IsUnavailable(status) && named) return 0;
  fprintf(stderr, "rank %d saw %s\n", spec.rank, status.ToString().c_str());
  return 1;
}

struct Setting {
  std::string backend;
  Order order;
};

class ProcessDeath : public ::testing::TestWithParam<Setting> {};

TEST_P(ProcessDeath, KilledInTheMiddle_OthersGetUnavailableNamingIt) {
  ASSERT_OK_AND_ASSIGN(const CommBackend* backend, FindCommBackend(GetParam().backend));
  GroupSpec spec;
  spec.size = kRanks;
  spec.secret = "secret";
  spec.shared_memory_fd = MakeSharedMemory(kRanks);
  std::vector<std::unique_ptr<TcpListener>> listeners(kRanks);
  for (auto& listener : listeners) {
    ASSERT_OK_AND_ASSIGN(listener, TcpListener::Open("127.0.0.1"));
    spec.endpoints.push_back(listener->endpoint());
  }
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  std::vector<pid_t> children;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(ready[0]);
      spec.rank = rank;
      _exit(RunChild(spec, *backend, std::move(listeners[rank]), GetParam().order, ready[1]));
    }
    children.push_back(child);
  }
  close(ready[1]);
  listeners.clear();
  close(spec.shared_memory_fd);

  // Ends early when a child fails.
  char said;
  for (int32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(read(ready[0], &said, 1), 1);
  kill(children[kVictim], SIGKILL);
  // Not reaped before the others: a zombie must count as gone.
  for (int32_t rank : {0, 2, kVictim}) {
    int status = 0;
    ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    if (rank != kVictim) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank;
    }
  }
  close(ready[0]);
}

INSTANTIATE_TEST_SUITE_P(
    Backends, ProcessDeath,
    ::testing::Values(Setting{"shm", Order::kRing}, Setting{"shm", Order::kOrdered},
                      Setting{"tcp", Order::kRing}, Setting{"tcp", Order::kOrdered}),
    [](const ::testing::TestParamInfo<Setting>& info) {
      return info.param.backend + (info.param.order == Order::kRing ? "_ring" : "_ordered");
    });

}  // namespace
}  // namespace weft::comm
