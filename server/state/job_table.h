// JobTable: every job that was ever accepted, in memory and in the state database; a change is on
// disk when the call that made it returns OK, and memory is unchanged when it does not. Also keeps
// the events that must survive a restart. Not thread-safe: the coordinator locks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "fabric/base/status.h"
#include "proto/job.pb.h"
#include "server/state/database.h"

namespace weft::state {

struct JobRecord {
  int64_t number = 0;        // order of admission, from 1
  v1::Job job;               // spec as admitted
  std::string request_id;    // empty: none was given
  std::string request_hash;  // of the spec as it came
  v1::Numerics numerics;     // decided at the first start, then kept
  bool has_numerics = false;
  bool resume = false;               // the next start continues from the newest checkpoint
  std::vector<std::string> workers;  // that hold or held members of the last generation
  int64_t event_ceiling = 0;         // event numbers up to here may have been used
};

class JobTable {
 public:
  // Opens or creates the database. Codes as Database::Open; DataLoss when a row cannot be read.
  static StatusOr<std::unique_ptr<JobTable>> Open(const std::string& path);

  // Makes number and id (the name and a short random part), and stores the job together with its
  // first event. AlreadyExists when its request id is taken.
  StatusOr<const JobRecord*> Insert(JobRecord record, const v1::JobEvent& first);
  // Replaces the record of the same id, together with an event of it if one is given. Internal when
  // the state may not follow the stored one.
  Status Update(const JobRecord& record, const v1::JobEvent* event = nullptr);
  // Memory only: progress that a restart may forget.
  void SetProgress(const std::string& id, int64_t step, double loss);
  // Memory only, until its next Update: how a rank came to its first step. Kept by rank.
  void AddStartUp(const std::string& id, const v1::StartUp& startup);
  // Memory only: why it waits.
  void SetReason(const std::string& id, const std::string& reason);

  const JobRecord* Find(const std::string& id) const;
  const JobRecord* FindRequest(const std::string& request_id) const;
  // Newest first, those with a number below `before`, at most `limit`.
  std::vector<const JobRecord*> List(int64_t before, size_t limit) const;
  // Not terminal, oldest first.
  std::vector<const JobRecord*> Unfinished() const;

  // Events on disk. Adding one of a number that is there replaces it.
  Status AddEvent(const std::string& job, const v1::JobEvent& event);
  StatusOr<std::vector<v1::JobEvent>> ReadEvents(const std::string& job);
  Status DropEventsBelow(const std::string& job, int64_t sequence);

 private:
  explicit JobTable(std::unique_ptr<Database> db) : db_(std::move(db)) {}
  Status LoadAll();
  Status WriteTogether(const JobRecord& record, const char* sql, const v1::JobEvent* event);
  Status Write(const JobRecord& record, const char* sql);
  JobRecord* FindMutable(const std::string& id);

  std::unique_ptr<Database> db_;
  std::map<int64_t, JobRecord> jobs_;  // by number
  absl::flat_hash_map<std::string, int64_t> by_id_;
  absl::flat_hash_map<std::string, int64_t> by_request_;
};

}  // namespace weft::state
