// Who may join a group, and what a damaged connection does to it.

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

#include "fabric/comm/comm_registry.h"
#include "tests/comm/test_group.h"
#include "tests/support/status_matchers.h"

namespace weft::comm {
namespace {

using ::weft::testing::IsStatus;
using Member = StatusOr<std::unique_ptr<Communicator>>;

// A blocking connection to "127.0.0.1:port".
int ConnectTo(const std::string& endpoint) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::atoi(endpoint.substr(10).c_str())));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Passes bytes between connections to its own listener and `target`. In the first connection, one
// bit of byte `flip_at` of what the connecting side sends is flipped.
class FlippingProxy {
 public:
  FlippingProxy(std::string target, int64_t flip_at)
      : target_(std::move(target)), flip_at_(flip_at), listener_(*TcpListener::Open("127.0.0.1")) {
    EXPECT_EQ(pipe(stop_), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~FlippingProxy() {
    close(stop_[1]);
    thread_.join();
    close(stop_[0]);
    for (const Pipe& pipe : pipes_) close(pipe.from);
  }
  std::string endpoint() const { return listener_->endpoint(); }

 private:
  struct Pipe {
    int from;
    int to;
    int64_t flip_at;  // -1: nowhere
    int64_t passed = 0;
    bool open = true;
  };

  void Run() {
    while (true) {
      std::vector<pollfd> polls = {{stop_[0], POLLIN, 0}, {listener_->fd(), POLLIN, 0}};
      for (const Pipe& pipe : pipes_) polls.push_back({pipe.open ? pipe.from : -1, POLLIN, 0});
      poll(polls.data(), polls.size(), -1);
      if (polls[0].revents != 0) return;
      for (size_t i = 0; i + 2 < polls.size(); ++i) {
        if (polls[i + 2].revents != 0) Pass(pipes_[i]);
      }
      if (polls[1].revents != 0) Take();
    }
  }
  void Take() {
    const int in = accept(listener_->fd(), nullptr, nullptr);
    if (in < 0) return;
    const int out = ConnectTo(target_);
    pipes_.push_back({in, out, pipes_.empty() ? flip_at_ : -1});
    pipes_.push_back({out, in, -1});
  }
  void Pass(Pipe& pipe) {
    char bytes[16384];
    const ssize_t got = recv(pipe.from, bytes, sizeof(bytes), 0);
    if (got <= 0) {
      pipe.open = false;
      shutdown(pipe.to, SHUT_WR);
      return;
    }
    const int64_t flip = pipe.flip_at - pipe.passed;
    if (pipe.flip_at >= 0 && flip >= 0 && flip < got) bytes[flip] ^= 4;
    pipe.passed += got;
    [[maybe_unused]] const ssize_t put = send(pipe.to, bytes, got, MSG_NOSIGNAL);
  }

  std::string target_;
  int64_t flip_at_;
  std::unique_ptr<TcpListener> listener_;
  int stop_[2];
  std::vector<Pipe> pipes_;
  std::thread thread_;
};

// Two ranks over TCP, rank 1 reaching rank 0 at `through` when that is not empty.
struct Pair {
  GroupSpec specs[2];
  std::unique_ptr<TcpListener> listeners[2];

  Pair() {
    for (int32_t rank : {0, 1}) {
      listeners[rank] = *TcpListener::Open("127.0.0.1");
      specs[rank].rank = rank;
      specs[rank].size = 2;
      specs[rank].secret = "this generation's";
      specs[rank].deadline = TestDeadline();
    }
    for (GroupSpec& spec : specs) {
      spec.endpoints = {listeners[0]->endpoint(), listeners[1]->endpoint()};
    }
  }
  Member Join(int32_t rank) { return JoinTcp(specs[rank], std::move(listeners[rank])); }
};

Status Barrier(Communicator& rank) { return rank.Launch(CollectiveCall(), {}, TestDeadline()); }

TEST(TcpJoin, Strangers_AreRefusedAndTheGroupForms) {
  Pair pair;
  const int silent = ConnectTo(pair.specs[0].endpoints[0]);
  const int noisy = ConnectTo(pair.specs[0].endpoints[0]);
  const std::string noise(4096, 'x');
  ASSERT_EQ(send(noisy, noise.data(), noise.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(noise.size()));

  Group group(2);
  std::thread first([&] { group[0] = *pair.Join(0); });
  // One that belongs to another generation is told so and does no harm.
  Pair other;
  other.specs[1].endpoints = pair.specs[1].endpoints;
  other.specs[1].secret = "an older generation's";
  EXPECT_THAT(other.Join(1),
              IsStatus(absl::StatusCode::kFailedPrecondition, "does not know this generation's"));
  ASSERT_OK_AND_ASSIGN(group[1], pair.Join(1));
  first.join();
  for (const Status& status : OnRanks(group, Barrier)) EXPECT_OK(status);
  close(silent);
  close(noisy);
}

TEST(TcpJoin, OtherSize_IsRefusedOnBothSides) {
  Pair pair;
  pair.specs[1].size = 3;
  pair.specs[1].endpoints.push_back("127.0.0.1:1");
  Member first = Aborted("not run");
  std::thread thread([&] { first = pair.Join(0); });
  EXPECT_THAT(pair.Join(1), IsStatus(absl::StatusCode::kFailedPrecondition, "2 ranks"));
  thread.join();
  EXPECT_THAT(first, IsStatus(absl::StatusCode::kFailedPrecondition, "3 ranks"));
}

TEST(TcpJoin, RankThatNeverComes_EndsAtTheDeadlineNamingIt) {
  Pair pair;
  pair.specs[0].deadline = Deadline::After(absl::Milliseconds(30));
  EXPECT_THAT(pair.Join(0), IsStatus(absl::StatusCode::kDeadlineExceeded, "rank 1"));
}

TEST(TcpJoin, BadSpecs_AreInvalidArgument) {
  Pair pair;
  GroupSpec spec = pair.specs[0];
  spec.secret.clear();
  EXPECT_THAT(JoinTcp(spec, nullptr), IsStatus(absl::StatusCode::kInvalidArgument, "secret"));
  spec = pair.specs[0];
  EXPECT_THAT(JoinTcp(spec, nullptr), IsStatus(absl::StatusCode::kInvalidArgument, "listener"));
  spec = pair.specs[1];
  spec.endpoints[0] = "nowhere";
  EXPECT_THAT(JoinTcp(spec, std::move(pair.listeners[1])),
              IsStatus(absl::StatusCode::kInvalidArgument, "nowhere"));
}

// Hello and Proof.
constexpr int64_t kHandshake = 48 + 32;
constexpr int64_t kHeader = 32;

class DamagedFrame : public ::testing::TestWithParam<int64_t> {};

TEST_P(DamagedFrame, OneFlippedBit_IsDataLossOnBothRanks) {
  Pair pair;
  FlippingProxy proxy(pair.specs[0].endpoints[0], GetParam());
  pair.specs[1].endpoints[0] = proxy.endpoint();
  Group group(2);
  std::thread first([&] { group[0] = *pair.Join(0); });
  ASSERT_OK_AND_ASSIGN(group[1], pair.Join(1));
  first.join();
  const auto results = OnRanks(group, [](Communicator& rank) {
    std::vector<float> data(100000, 1.0f);
    CollectiveCall call;
    call.kind = Kind::kAllReduce;
    call.count = static_cast<int64_t>(data.size());
    call.send = data.data();
    call.recv = data.data();
    return rank.Launch(call, {}, TestDeadline());
  });
  for (const Status& status : results) {
    EXPECT_THAT(status, IsStatus(absl::StatusCode::kDataLoss, "from rank 1"));
  }
}

INSTANTIATE_TEST_SUITE_P(Places, DamagedFrame,
                         ::testing::Values(kHandshake + 1, kHandshake + 5, kHandshake + 17,
                                           kHandshake + kHeader, kHandshake + kHeader + 70000));

TEST(ShmJoin, WrongMembers_AreRefused) {
  const int fd = MakeSharedMemory(2);
  GroupSpec spec;
  spec.size = 2;
  spec.secret = "a";
  spec.shared_memory_fd = fd;
  spec.deadline = TestDeadline();
  GroupSpec other = spec;
  other.rank = 1;
  other.secret = "b";
  Member first = Aborted("not run");
  std::thread thread([&] { first = JoinSharedMemory(spec); });
  const Member second = JoinSharedMemory(other);
  thread.join();
  EXPECT_THAT(first, IsStatus(absl::StatusCode::kFailedPrecondition, "another secret"));
  EXPECT_THAT(second, IsStatus(absl::StatusCode::kFailedPrecondition, "another secret"));
  EXPECT_THAT(JoinSharedMemory(spec),
              IsStatus(absl::StatusCode::kFailedPrecondition, "new descriptor"));
  spec.size = 4;
  EXPECT_THAT(JoinSharedMemory(spec), IsStatus(absl::StatusCode::kInvalidArgument, "4 ranks need"));
  spec.shared_memory_fd = -1;
  EXPECT_FALSE(JoinSharedMemory(spec).ok());
  close(fd);
}

TEST(ShmJoin, RankThatNeverComes_EndsAtTheDeadlineNamingIt) {
  const int fd = MakeSharedMemory(2);
  GroupSpec spec;
  spec.size = 2;
  spec.shared_memory_fd = fd;
  spec.deadline = Deadline::After(absl::Milliseconds(30));
  EXPECT_THAT(JoinSharedMemory(spec), IsStatus(absl::StatusCode::kDeadlineExceeded, "rank 1"));
  close(fd);
}

TEST(CommRegistry, UnknownName_SuggestsTheNearest) {
  EXPECT_THAT(FindCommBackend("tpc"), IsStatus(absl::StatusCode::kInvalidArgument, "tcp"));
  for (const std::string& name : CommBackendNames()) EXPECT_OK(FindCommBackend(name));
}

}  // namespace
}  // namespace weft::comm
