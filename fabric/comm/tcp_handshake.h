// Who is at the other end of a connection: both sides prove that they know the generation's secret
// before either believes anything the other says, and agree on a tag that every later frame
// carries.
//
//   connector -> Hello      who I am, a random number
//   acceptor  -> Challenge  who I am, a random number, proof over both messages
//   connector -> Proof      proof over both messages
//   acceptor  -> Verdict    joined, or why not
//
// Fields are little-endian, as all machines that we build for are.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

#include "fabric/base/clock.h"
#include "fabric/base/status.h"
#include "fabric/comm/secret.h"
#include "fabric/comm/tcp_socket.h"

namespace weft::comm {

// A pair of ranks has two connections: one for data, one that tells of aborts even when the first
// is full.
enum class Use : uint32_t { kData = 0, kControl = 1 };

struct Identity {
  int32_t rank = 0;
  int32_t size = 1;
  std::string secret;
};

struct Hello {
  uint32_t magic;
  int32_t rank;
  int32_t size;
  uint32_t use;
  Mac nonce;
};
struct Challenge {
  uint32_t magic;
  int32_t rank;
  int32_t size;
  uint32_t use;
  Mac nonce;
  Mac proof;
};
struct Proof {
  Mac proof;
};
struct Verdict {
  uint32_t magic;
  uint32_t joined;  // 1, or 0
};

// What both ends know in the end.
struct Link {
  Socket socket;
  int32_t peer = -1;
  Use use = Use::kData;
  uint64_t tag = 0;
};

// The connector's whole side. FailedPrecondition when the acceptor has another secret, rank or
// size.
StatusOr<Link> Introduce(Socket socket, const Identity& self, int32_t peer, Use use,
                         Deadline deadline);

// The acceptor's side of one connection, driven by its events, so that a silent stranger holds up
// nobody.
class Greeting {
 public:
  enum class State { kHello, kProof, kDone, kRefused };

  Greeting(Socket socket, const Identity& self, Deadline deadline)
      : socket_(std::move(socket)), self_(self), deadline_(deadline) {}

  // Reads what has come and answers.
  State Advance();
  State state() const { return state_; }
  int fd() const { return socket_.fd(); }
  bool Expired() const { return deadline_.Expired(); }
  // Why a peer that knows the secret was refused; OK for strangers, who are nobody's concern.
  const Status& conflict() const { return conflict_; }

  // kDone only.
  int32_t peer() const { return hello_.rank; }
  Use use() const { return static_cast<Use>(hello_.use); }
  // kDone only. Tells the connector, so that it may use the link.
  StatusOr<Link> Finish();

 private:
  bool Fill(size_t bytes);
  State AnswerHello();
  State CheckProof();

  Socket socket_;
  Identity self_;
  Deadline deadline_;
  State state_ = State::kHello;
  std::string come_;
  Hello hello_ = {};
  Challenge challenge_ = {};
  Status conflict_;
};

}  // namespace weft::comm
