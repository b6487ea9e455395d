#include <poll.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "fabric/comm/channel_communicator.h"
#include "fabric/comm/communicator.h"
#include "fabric/comm/tcp_channel.h"
#include "fabric/comm/tcp_handshake.h"

namespace weft::comm {
namespace {

// A connection that has not proved itself by then is dropped.
constexpr absl::Duration kGreetingTime = absl::Seconds(5);
// Unproven connections at a time; the oldest goes when one more comes.
constexpr size_t kMostGreetings = 256;

// Builds a rank's links: it connects to all lower ranks and is connected to by all higher ones.
class Join {
 public:
  Join(const GroupSpec& spec, const TcpListener& listener)
      : spec_(spec),
        listener_(listener),
        self_{spec.rank, spec.size, spec.secret},
        have_(2 * spec.size, false) {}

  StatusOr<std::vector<Link>> Run() {
    for (int32_t peer = 0; peer < spec_.rank; ++peer) {
      for (const Use use : {Use::kData, Use::kControl}) RETURN_IF_ERROR(ConnectTo(peer, use));
    }
    const size_t expected = 2 * (spec_.size - 1);
    while (links_.size() < expected) RETURN_IF_ERROR(AcceptSome());
    return std::move(links_);
  }

 private:
  Status ConnectTo(int32_t peer, Use use) {
    const std::string& endpoint = spec_.endpoints[peer];
    const std::string place =
        absl::StrCat("rank ", spec_.rank, " joining rank ", peer, " at ", endpoint);
    StatusOr<Socket> socket = Connect(endpoint, spec_.deadline);
    if (!socket.ok()) return Annotate(socket.status(), place);
    StatusOr<Link> link = Introduce(std::move(*socket), self_, peer, use, spec_.deadline);
    if (!link.ok()) return Annotate(link.status(), place);
    links_.push_back(std::move(*link));
    return absl::OkStatus();
  }

  Status AcceptSome() {
    std::vector<pollfd> polls = {{listener_.fd(), POLLIN, 0}};
    for (const auto& greeting : greetings_) polls.push_back({greeting->fd(), POLLIN, 0});
    poll(polls.data(), polls.size(), PollTimeout(spec_.deadline, absl::Milliseconds(200)));
    for (size_t i = 0; i < greetings_.size(); ++i) {
      if (polls[i + 1].revents != 0) greetings_[i]->Advance();
    }
    RETURN_IF_ERROR(Settle());
    for (Socket made = Accept(listener_.fd()); made.valid(); made = Accept(listener_.fd())) {
      if (greetings_.size() == kMostGreetings) greetings_.erase(greetings_.begin());
      greetings_.push_back(
          std::make_unique<Greeting>(std::move(made), self_, Deadline::After(kGreetingTime)));
    }
    return spec_.deadline.Expired() ? Missing() : absl::OkStatus();
  }

  // Takes the links of finished greetings and drops the rest that ended.
  Status Settle() {
    for (auto& greeting : greetings_) {
      RETURN_IF_ERROR(greeting->conflict());
      if (greeting->state() == Greeting::State::kRefused || greeting->Expired()) {
        greeting.reset();
        ++refused_;
      } else if (greeting->state() == Greeting::State::kDone) {
        Take(*greeting);
        greeting.reset();
      }
    }
    greetings_.erase(std::remove(greetings_.begin(), greetings_.end(), nullptr), greetings_.end());
    return absl::OkStatus();
  }

  void Take(Greeting& greeting) {
    const size_t place = 2 * greeting.peer() + static_cast<size_t>(greeting.use());
    if (have_[place]) {
      ++refused_;
      return;
    }
    StatusOr<Link> link = greeting.Finish();
    // A peer that gave up in between may come again.
    if (!link.ok()) return;
    have_[place] = true;
    links_.push_back(std::move(*link));
  }

  Status Missing() const {
    std::vector<int32_t> missing;
    for (int32_t peer = spec_.rank + 1; peer < spec_.size; ++peer) {
      if (!have_[2 * peer] || !have_[2 * peer + 1]) missing.push_back(peer);
    }
    return DeadlineExceeded("rank ", spec_.rank, " waited in vain for rank ",
                            absl::StrJoin(missing, ", "), " to join at ", listener_.endpoint(),
                            "; connections refused: ", refused_);
  }

  const GroupSpec& spec_;
  const TcpListener& listener_;
  const Identity self_;
  std::vector<bool> have_;  // [2 * rank + use]: accepted
  std::vector<Link> links_;
  std::vector<std::unique_ptr<Greeting>> greetings_;
  int64_t refused_ = 0;
};

}  // namespace

StatusOr<std::unique_ptr<Communicator>> JoinTcp(const GroupSpec& spec,
                                                std::unique_ptr<TcpListener> listener) {
  if (spec.size < 1 || spec.rank < 0 || spec.rank >= spec.size) {
    return InvalidArgument("rank ", spec.rank, " of ", spec.size, " is no member of a group");
  }
  if (spec.size == 1) return MakeLoopback();
  if (spec.secret.empty()) return InvalidArgument("the group has no secret");
  if (listener == nullptr) return InvalidArgument("a TCP group needs a listener");
  if (spec.endpoints.size() != static_cast<size_t>(spec.size)) {
    return InvalidArgument(spec.endpoints.size(), " endpoints for ", spec.size, " ranks");
  }
  ASSIGN_OR_RETURN(std::vector<Link> links, Join(spec, *listener).Run());
  ASSIGN_OR_RETURN(std::unique_ptr<Channel> channel,
                   MakeTcpChannel(spec.rank, spec.size, std::move(links)));
  return MakeChannelCommunicator(std::move(channel));
}

}  // namespace weft::comm
