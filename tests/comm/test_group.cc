#include "tests/comm/test_group.h"

#include <sys/mman.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace weft::comm {
namespace {

using Member = StatusOr<std::unique_ptr<Communicator>>;

StatusOr<Group> JoinAll(int32_t size, const std::function<Member(int32_t)>& join) {
  std::vector<Member> members(size);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { members[rank] = join(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  Group group;
  for (Member& member : members) {
    if (!member.ok()) return member.status();
    group.push_back(std::move(*member));
  }
  return group;
}

StatusOr<Group> MakeShm(int32_t size) {
  const int fd = MakeSharedMemory(size);
  StatusOr<Group> group = JoinAll(size, [&](int32_t rank) {
    GroupSpec spec;
    spec.rank = rank;
    spec.size = size;
    spec.secret = "secret";
    spec.shared_memory_fd = fd;
    spec.deadline = TestDeadline();
    return JoinSharedMemory(spec);
  });
  close(fd);
  return group;
}

StatusOr<Group> MakeTcp(int32_t size) {
  std::vector<std::unique_ptr<TcpListener>> listeners;
  GroupSpec common;
  common.size = size;
  common.secret = "secret";
  common.deadline = TestDeadline();
  for (int32_t rank = 0; rank < size; ++rank) {
    ASSIGN_OR_RETURN(std::unique_ptr<TcpListener> listener, TcpListener::Open("127.0.0.1"));
    common.endpoints.push_back(listener->endpoint());
    listeners.push_back(std::move(listener));
  }
  return JoinAll(size, [&](int32_t rank) {
    GroupSpec spec = common;
    spec.rank = rank;
    return JoinTcp(spec, std::move(listeners[rank]));
  });
}

}  // namespace

Deadline TestDeadline() { return Deadline::After(absl::Seconds(60)); }

int MakeSharedMemory(int32_t size) {
  const int fd = memfd_create("group", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, SharedMemoryBytes(size)) != 0) return -1;
  return fd;
}

StatusOr<Group> MakeGroup(const std::string& backend, int32_t size) {
  absl::string_view name = backend;
  const bool checked = absl::ConsumeSuffix(&name, "_checked");
  StatusOr<Group> group = InvalidArgument("no backend ", backend);
  if (name == "in_process") group = MakeInProcessGroup(size);
  if (name == "shm") group = MakeShm(size);
  if (name == "tcp") group = MakeTcp(size);
  if (group.ok() && checked) {
    for (auto& communicator : *group) communicator = MakeChecked(std::move(communicator));
  }
  return group;
}

std::vector<Status> OnRanks(Group& group, const std::function<Status(Communicator&)>& body) {
  std::vector<Status> results(group.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] { results[rank] = body(*group[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace weft::comm
