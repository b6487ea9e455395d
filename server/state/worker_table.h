// WorkerTable: the nodes that registered, in memory. A worker stays listed while its stream is
// away, until heartbeats are silent for too long. Not thread-safe: the coordinator locks.
// Heartbeats are elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "proto/member_api.pb.h"

namespace weft::state {

// Where a worker's commands go. Send queues and returns at once; it may be called under any lock.
class CommandSink {
 public:
  virtual ~CommandSink() = default;
  virtual void Send(const v1::MemberCommand& command) = 0;
};

// (job, generation, rank), ordered.
using MemberKey = std::tuple<std::string, int64_t, int32_t>;
inline MemberKey KeyOf(const v1::MemberId& m) { return {m.job(), m.generation(), m.rank()}; }

struct Worker {
  v1::Registration facts;
  int64_t connection = 0;       // of the last registration; older ones' messages do not count
  CommandSink* sink = nullptr;  // nullptr: its stream is away; not owned
  // Members of generations that no one waits for, which still hold slots there until they are
  // reaped.
  std::set<MemberKey> ending;
};

class WorkerTable {
 public:
  // Adds or replaces by id.
  Worker& Register(v1::Registration facts, int64_t connection, CommandSink* sink) {
    Worker& w = workers_[facts.worker()];
    w.facts = std::move(facts);
    w.connection = connection;
    w.sink = sink;
    return w;
  }
  Worker* Find(const std::string& id) {
    const auto it = workers_.find(id);
    return it == workers_.end() ? nullptr : &it->second;
  }
  void Remove(const std::string& id) { workers_.erase(id); }
  // Queues `command`; nothing happens when its stream is away, since a worker that comes back is
  // told anew.
  void Send(const std::string& id, const v1::MemberCommand& command) {
    if (Worker* w = Find(id); w != nullptr && w->sink != nullptr) w->sink->Send(command);
  }
  const std::map<std::string, Worker>& all() const { return workers_; }

 private:
  std::map<std::string, Worker> workers_;
};

}  // namespace weft::state
