#include "fabric/comm/tcp_handshake.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace weft::comm {
namespace {

constexpr uint32_t kMagic = 0x31465457;  // "WTF1", weft frames of layout 1

template <typename T>
absl::string_view Bytes(const T& message) {
  return absl::string_view(reinterpret_cast<const char*>(&message), sizeof(message));
}

// All that was said before the proofs.
std::string Transcript(const Hello& hello, const Challenge& challenge) {
  Challenge said = challenge;
  said.proof = {};
  return absl::StrCat(Bytes(hello), Bytes(said));
}

// The three uses of one transcript differ in their first word.
Mac AcceptorProof(const Identity& self, const Hello& hello, const Challenge& challenge) {
  return MacOf(self.secret, absl::StrCat("acceptor", Transcript(hello, challenge)));
}
Mac ConnectorProof(const Identity& self, const Hello& hello, const Challenge& challenge) {
  return MacOf(self.secret, absl::StrCat("connector", Transcript(hello, challenge)));
}
uint64_t TagOf(const Identity& self, const Hello& hello, const Challenge& challenge) {
  const Mac mac = MacOf(self.secret, absl::StrCat("frames", Transcript(hello, challenge)));
  uint64_t tag = 0;
  std::memcpy(&tag, mac.data(), sizeof(tag));
  return tag;
}

Status OtherGroup(const Identity& self, int32_t peer, int32_t size) {
  return FailedPrecondition("rank ", peer, " thinks the group has ", size, " ranks, rank ",
                            self.rank, " thinks it has ", self.size);
}

}  // namespace

StatusOr<Link> Introduce(Socket socket, const Identity& self, int32_t peer, Use use,
                         Deadline deadline) {
  const Hello hello{kMagic, self.rank, self.size, static_cast<uint32_t>(use), RandomNonce()};
  RETURN_IF_ERROR(WriteAll(socket.fd(), &hello, sizeof(hello), deadline));
  Challenge challenge;
  RETURN_IF_ERROR(ReadAll(socket.fd(), &challenge, sizeof(challenge), deadline));
  if (challenge.magic != kMagic) return FailedPrecondition("what answers there is not Weft");
  if (!SameMac(challenge.proof, AcceptorProof(self, hello, challenge))) {
    return FailedPrecondition("what answers there does not know this generation's secret");
  }
  const Proof proof{ConnectorProof(self, hello, challenge)};
  RETURN_IF_ERROR(WriteAll(socket.fd(), &proof, sizeof(proof), deadline));
  if (challenge.size != self.size) return OtherGroup(self, challenge.rank, challenge.size);
  if (challenge.rank != peer) {
    return FailedPrecondition("rank ", challenge.rank, " answers where rank ", peer,
                              " was expected");
  }
  Verdict verdict;
  RETURN_IF_ERROR(ReadAll(socket.fd(), &verdict, sizeof(verdict), deadline));
  if (verdict.magic != kMagic || verdict.joined != 1) {
    return FailedPrecondition("rank ", peer, " refused rank ", self.rank,
                              ": another process holds that rank, or it is out of range");
  }
  return Link{std::move(socket), peer, use, TagOf(self, hello, challenge)};
}

// True once `bytes` have come.
bool Greeting::Fill(size_t bytes) {
  const size_t had = come_.size();
  if (had >= bytes) return true;
  come_.resize(bytes);
  const ssize_t got = recv(socket_.fd(), come_.data() + had, bytes - had, MSG_DONTWAIT);
  come_.resize(had + static_cast<size_t>(got > 0 ? got : 0));
  const bool later = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  if (got <= 0 && !later) state_ = State::kRefused;
  return come_.size() == bytes;
}

Greeting::State Greeting::Advance() {
  if (state_ == State::kHello && Fill(sizeof(Hello))) state_ = AnswerHello();
  if (state_ == State::kProof && Fill(sizeof(Proof))) state_ = CheckProof();
  return state_;
}

Greeting::State Greeting::AnswerHello() {
  std::memcpy(&hello_, come_.data(), sizeof(hello_));
  come_.clear();
  if (hello_.magic != kMagic) return State::kRefused;
  challenge_ = {kMagic, self_.rank, self_.size, hello_.use, RandomNonce(), {}};
  challenge_.proof = AcceptorProof(self_, hello_, challenge_);
  // A new connection has room for this, so a partial send is a broken peer.
  const ssize_t sent =
      send(socket_.fd(), &challenge_, sizeof(challenge_), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == sizeof(challenge_) ? State::kProof : State::kRefused;
}

Greeting::State Greeting::CheckProof() {
  Proof proof;
  std::memcpy(&proof, come_.data(), sizeof(proof));
  come_.clear();
  if (!SameMac(proof.proof, ConnectorProof(self_, hello_, challenge_))) return State::kRefused;
  if (hello_.size != self_.size) {
    conflict_ = OtherGroup(self_, hello_.rank, hello_.size);
    return State::kRefused;
  }
  // Connections go from higher ranks to lower ones.
  if (hello_.rank <= self_.rank || hello_.rank >= self_.size || hello_.use > 1) {
    conflict_ = FailedPrecondition("a peer with the group's secret claims to be rank ", hello_.rank,
                                   " of ", self_.size);
    return State::kRefused;
  }
  return State::kDone;
}

StatusOr<Link> Greeting::Finish() {
  const Verdict verdict{kMagic, 1};
  RETURN_IF_ERROR(WriteAll(socket_.fd(), &verdict, sizeof(verdict), deadline_));
  return Link{std::move(socket_), peer(), use(), TagOf(self_, hello_, challenge_)};
}

}  // namespace weft::comm
