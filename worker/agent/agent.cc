#include "worker/agent/agent.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"

#include "fabric/base/check.h"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/wire/status_proto.h"

namespace weft::agent {
namespace {

constexpr size_t kMaxBuffered = 10000;
constexpr absl::Duration kWatchPoll = absl::Milliseconds(100);

std::tuple<std::string, int64_t, int32_t> KeyOf(const v1::MemberId& m) {
  return {m.job(), m.generation(), m.rank()};
}

uint32_t RandomWord() {
  uint32_t word = 0;
  WEFT_CHECK(getrandom(&word, sizeof word, 0) == sizeof word);
  return word;
}

std::string MakeWorkerId() {
  char host[256] = "node";
  gethostname(host, sizeof host - 1);
  return absl::StrFormat("%s-%08x", host, RandomWord());
}

}  // namespace

Agent::Agent(AgentOptions options)
    : options_(std::move(options)), facts_(options_.facts), outbox_(kMaxBuffered) {
  facts_.set_worker(MakeWorkerId());
  facts_.set_incarnation(int64_t{RandomWord()} + 1);
  v1::HeartbeatRequest beat;
  beat.set_worker(facts_.worker());
  beat.set_incarnation(facts_.incarnation());
  stream_ = std::make_unique<MemberStream>(
      options_.coordinator, &outbox_,
      MemberStream::Hooks{
          .registration = [this] { return MakeRegistration(); },
          .on_registered = [this] { OnRegistered(); },
          .on_command = [this](const v1::MemberCommand& command) { OnCommand(command); }});
  heartbeat_ =
      std::make_unique<Heartbeat>(options_.coordinator, beat, options_.heartbeat_interval,
                                  [this](absl::Duration sent) { stream_->ReconnectIfOlder(sent); });
  watcher_ = std::thread([this] { WatchCoordinator(); });
}

Agent::~Agent() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  watcher_.join();
  heartbeat_.reset();
  stream_.reset();
  KillMembers();
  std::map<Key, std::shared_ptr<Member>> members;
  {
    absl::MutexLock lock(&mu_);
    members.swap(members_);
    for (const auto& [generation, fd] : shared_memory_) close(fd);
    shared_memory_.clear();
  }
}

v1::Registration Agent::MakeRegistration() {
  v1::Registration facts = facts_;
  for (const auto& member : All()) *facts.add_members() = member->id();
  return facts;
}

void Agent::OnRegistered() {
  for (const auto& member : All()) member->Resend();
}

void Agent::OnCommand(const v1::MemberCommand& command) {
  switch (command.kind_case()) {
    case v1::MemberCommand::kStart:
      return StartMember(command.start());
    case v1::MemberCommand::kPrepare:
      if (const auto member = Find(command.prepare().member())) {
        member->Prepare(command.prepare().request());
      }
      return;
    case v1::MemberCommand::kRun:
      if (const auto member = Find(command.run().member())) member->Run();
      return;
    case v1::MemberCommand::kStop:
      if (const auto member = Find(command.stop().member())) member->Stop(command.stop().mode());
      return;
    case v1::MemberCommand::kEnd:
      return EndMember(command.end());
    default:
      return;
  }
}

void Agent::StartMember(const v1::StartMember& start) {
  const v1::MemberId& id = start.spec().member();
  int shared = -1;
  absl::MutexLock lock(&mu_);
  if (members_.contains(KeyOf(id))) return;
  if (stopping_) return RefuseMember(id, Unavailable("its worker is shutting down"));
  if (start.shared_memory_bytes() > 0) {
    const StatusOr<int> fd = SharedMemoryLocked(id, start.shared_memory_bytes());
    if (!fd.ok()) return RefuseMember(id, fd.status());
    shared = *fd;
  }
  v1::StartMember placed = start;
  placed.mutable_spec()->set_device_index(LeastUsedGpuLocked());
  members_[KeyOf(id)] = std::make_shared<Member>(MemberOptions{.start = std::move(placed),
                                                               .program = options_.program,
                                                               .host = facts_.host(),
                                                               .log_level = options_.log_level,
                                                               .shared_memory_fd = shared,
                                                               .outbox = &outbox_});
}

// The first of the GPUs that the fewest members have.
int32_t Agent::LeastUsedGpuLocked() const {
  std::vector<int> users(static_cast<size_t>(std::max(facts_.gpu().count(), 1)));
  for (const auto& [key, member] : members_) ++users[static_cast<size_t>(member->device_index())];
  return static_cast<int32_t>(std::min_element(users.begin(), users.end()) - users.begin());
}

void Agent::RefuseMember(const v1::MemberId& member, const Status& why) {
  v1::MemberMessage opened;
  *opened.mutable_opened()->mutable_member() = member;
  *opened.mutable_opened()->mutable_error() = wire::ToProto(why);
  outbox_.Add(std::move(opened));
  v1::MemberMessage exited;
  *exited.mutable_exited()->mutable_member() = member;
  exited.mutable_exited()->set_exit_code(1);
  exited.mutable_exited()->set_last_step(-1);
  *exited.mutable_exited()->mutable_error() = wire::ToProto(why);
  outbox_.Add(std::move(exited));
}

StatusOr<int> Agent::SharedMemoryLocked(const v1::MemberId& member, int64_t bytes) {
  const std::pair<std::string, int64_t> key = {member.job(), member.generation()};
  if (const auto it = shared_memory_.find(key); it != shared_memory_.end()) return it->second;
  const int fd = memfd_create("weft-group", MFD_CLOEXEC);
  if (fd < 0) return ErrnoStatus("shared memory of a group", errno);
  if (ftruncate(fd, bytes) != 0) {
    const int reason = errno;
    close(fd);
    return ErrnoStatus(absl::StrCat("shared memory of ", bytes, " bytes"), reason);
  }
  shared_memory_[key] = fd;
  return fd;
}

void Agent::DropSharedMemoryLocked(const v1::MemberId& member) {
  const std::pair<std::string, int64_t> key = {member.job(), member.generation()};
  const bool used = std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
    return std::get<0>(entry.first) == key.first && std::get<1>(entry.first) == key.second;
  });
  const auto it = shared_memory_.find(key);
  if (used || it == shared_memory_.end()) return;
  close(it->second);
  shared_memory_.erase(it);
}

// The coordinator has heard of the end, or wants it: a member that has exited is forgotten.
void Agent::EndMember(const v1::EndMember& end) {
  const std::shared_ptr<Member> member = Find(end.member());
  if (member == nullptr) {
    // Nothing of that name runs here, which is what the answer says.
    v1::MemberMessage exited;
    *exited.mutable_exited()->mutable_member() = end.member();
    exited.mutable_exited()->set_last_step(-1);
    outbox_.Add(std::move(exited));
    return;
  }
  if (!member->exited()) {
    LOG_INFO("member ended job={} generation={} rank={} reason={}", end.member().job(),
             end.member().generation(), end.member().rank(), end.reason());
    member->End();
  }
  {
    absl::MutexLock lock(&mu_);
    doomed_.insert(KeyOf(end.member()));
  }
  ForgetDoomed();
}

void Agent::ForgetDoomed() {
  // Dropped after the lock: a member's end joins its thread.
  std::vector<std::shared_ptr<Member>> gone;
  absl::MutexLock lock(&mu_);
  for (auto it = doomed_.begin(); it != doomed_.end();) {
    const auto member = members_.find(*it);
    if (member != members_.end() && !member->second->exited()) {
      ++it;
      continue;
    }
    it = doomed_.erase(it);
    if (member == members_.end()) continue;
    gone.push_back(std::move(member->second));
    members_.erase(member);
    DropSharedMemoryLocked(gone.back()->id());
  }
}

std::shared_ptr<Member> Agent::Find(const v1::MemberId& member) {
  absl::MutexLock lock(&mu_);
  const auto it = members_.find(KeyOf(member));
  return it == members_.end() ? nullptr : it->second;
}

std::vector<std::shared_ptr<Member>> Agent::All() {
  absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<Member>> all;
  for (const auto& [key, member] : members_) all.push_back(member);
  return all;
}

void Agent::WatchCoordinator() {
  bool saved = false;
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stopping_), kWatchPoll)) return;
    }
    ForgetDoomed();
    const bool lost = stream_->away() > options_.coordinator_lost;
    if (lost && !saved) {
      LOG_WARN("coordinator lost for {}, members save and end",
               absl::FormatDuration(options_.coordinator_lost));
      for (const auto& member : All()) member->Stop(v1::STOP_MODE_SAVE_AND_STOP);
    }
    saved = lost;
  }
}

void Agent::SaveAndStop(absl::Duration grace) {
  const Deadline deadline = Deadline::After(grace);
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  const auto members = All();
  for (const auto& member : members) {
    if (!member->exited()) member->Stop(v1::STOP_MODE_SAVE_AND_STOP);
  }
  for (const auto& member : members) {
    if (!member->WaitExited(deadline.Remaining())) {
      LOG_WARN("member did not stop in time, killed job={} rank={}", member->id().job(),
               member->id().rank());
      member->End();
      member->WaitExited(absl::Seconds(2));
    }
  }
  if (!members.empty()) outbox_.WaitEmpty(std::min(deadline.Remaining(), absl::Seconds(2)));
}

void Agent::KillMembers() {
  for (const auto& member : All()) member->End();
}

}  // namespace weft::agent
