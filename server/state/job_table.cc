#include "server/state/job_table.h"

#include <sys/random.h>

#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "fabric/base/check.h"
#include "server/state/job_state.h"

namespace weft::state {
namespace {

constexpr int kSchemaVersion = 1;
constexpr char kSchema[] = R"sql(
CREATE TABLE jobs (
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  request_id TEXT UNIQUE,
  request_hash TEXT NOT NULL,
  job BLOB NOT NULL,
  numerics BLOB,
  resume INTEGER NOT NULL,
  workers TEXT NOT NULL,
  event_ceiling INTEGER NOT NULL
);
CREATE TABLE events (
  job TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  event BLOB NOT NULL,
  PRIMARY KEY (job, sequence)
) WITHOUT ROWID;
)sql";

constexpr char kInsert[] =
    "INSERT INTO jobs (request_id, request_hash, job, numerics, resume, workers, event_ceiling, "
    "id, "
    "number) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr char kUpdate[] =
    "UPDATE jobs SET request_id=?, request_hash=?, job=?, numerics=?, resume=?, workers=?, "
    "event_ceiling=? WHERE id=? AND number=?";
constexpr char kSelect[] =
    "SELECT number, id, request_id, request_hash, job, numerics, numerics IS NOT NULL, resume, "
    "workers, event_ceiling FROM jobs ORDER BY number";

// Letters and digits that are not taken for one another.
constexpr char kAlphabet[] = "23456789abcdefghjkmnpqrstuvwxyz";
constexpr int kSuffixLength = 5;

std::string RandomSuffix() {
  unsigned char bytes[kSuffixLength];
  WEFT_CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes);
  std::string suffix;
  for (unsigned char b : bytes) suffix += kAlphabet[b % (sizeof kAlphabet - 1)];
  return suffix;
}

}  // namespace

StatusOr<std::unique_ptr<JobTable>> JobTable::Open(const std::string& path) {
  ASSIGN_OR_RETURN(auto db, Database::Open(path, kSchemaVersion, kSchema));
  std::unique_ptr<JobTable> table(new JobTable(std::move(db)));
  RETURN_IF_ERROR(Annotate(table->LoadAll(), path));
  return table;
}

Status JobTable::LoadAll() {
  ASSIGN_OR_RETURN(Statement rows, db_->Prepare(kSelect));
  while (true) {
    ASSIGN_OR_RETURN(const bool row, rows.Step());
    if (!row) return absl::OkStatus();
    JobRecord r;
    r.number = rows.Int(0);
    const std::string id = rows.Bytes(1);
    r.request_id = rows.Bytes(2);
    r.request_hash = rows.Bytes(3);
    r.has_numerics = rows.Int(6) != 0;
    if (!r.job.ParseFromString(rows.Bytes(4)) || r.job.id() != id ||
        (r.has_numerics && !r.numerics.ParseFromString(rows.Bytes(5)))) {
      return DataLoss("row of job ", id, " cannot be read");
    }
    r.resume = rows.Int(7) != 0;
    r.workers = absl::StrSplit(rows.Bytes(8), '\n', absl::SkipEmpty());
    r.event_ceiling = rows.Int(9);
    by_id_[id] = r.number;
    if (!r.request_id.empty()) by_request_[r.request_id] = r.number;
    jobs_.emplace(r.number, std::move(r));
  }
}

Status JobTable::Write(const JobRecord& r, const char* sql) {
  ASSIGN_OR_RETURN(Statement write, db_->Prepare(sql));
  if (r.request_id.empty()) {
    write.BindNull(1);
  } else {
    write.BindText(1, r.request_id);
  }
  write.BindText(2, r.request_hash).BindBlob(3, r.job.SerializeAsString());
  if (r.has_numerics) {
    write.BindBlob(4, r.numerics.SerializeAsString());
  } else {
    write.BindNull(4);
  }
  write.BindInt(5, r.resume ? 1 : 0).BindText(6, absl::StrJoin(r.workers, "\n"));
  write.BindInt(7, r.event_ceiling).BindText(8, r.job.id()).BindInt(9, r.number);
  return write.Run();
}

Status JobTable::WriteTogether(const JobRecord& record, const char* sql,
                               const v1::JobEvent* event) {
  if (event == nullptr) return Annotate(Write(record, sql), "store the job");
  RETURN_IF_ERROR(db_->Execute("BEGIN IMMEDIATE"));
  Status status = Annotate(Write(record, sql), "store the job");
  if (status.ok()) status = AddEvent(record.job.id(), *event);
  if (status.ok()) status = db_->Execute("COMMIT");
  if (!status.ok()) db_->Execute("ROLLBACK").IgnoreError();
  return status;
}

StatusOr<const JobRecord*> JobTable::Insert(JobRecord record, const v1::JobEvent& first) {
  if (!record.request_id.empty() && by_request_.contains(record.request_id)) {
    return absl::AlreadyExistsError(absl::StrCat("request id '", record.request_id, "' is taken"));
  }
  record.number = jobs_.empty() ? 1 : jobs_.rbegin()->first + 1;
  const std::string name = record.job.spec().name().empty() ? "job" : record.job.spec().name();
  do {
    record.job.set_id(absl::StrCat(name, "-", RandomSuffix()));
  } while (by_id_.contains(record.job.id()));
  RETURN_IF_ERROR(WriteTogether(record, kInsert, &first));
  by_id_[record.job.id()] = record.number;
  if (!record.request_id.empty()) by_request_[record.request_id] = record.number;
  return &jobs_.emplace(record.number, std::move(record)).first->second;
}

Status JobTable::Update(const JobRecord& record, const v1::JobEvent* event) {
  JobRecord* stored = FindMutable(record.job.id());
  if (stored == nullptr) return Internal("update of unknown job ", record.job.id());
  const v1::JobState from = stored->job.state(), to = record.job.state();
  if (from != to && !MayFollow(from, to)) {
    return Internal("job ", record.job.id(), " may not go from ", NameOf(from), " to ", NameOf(to));
  }
  RETURN_IF_ERROR(WriteTogether(record, kUpdate, event));
  if (stored != &record) *stored = record;
  return absl::OkStatus();
}

void JobTable::SetProgress(const std::string& id, int64_t step, double loss) {
  if (JobRecord* r = FindMutable(id)) {
    r->job.set_step(step);
    r->job.set_loss(loss);
  }
}

void JobTable::AddStartUp(const std::string& id, const v1::StartUp& startup) {
  JobRecord* r = FindMutable(id);
  if (r == nullptr) return;
  auto* all = r->job.mutable_startup();
  *all->Add() = startup;
  for (int i = all->size() - 1; i > 0 && all->Get(i - 1).rank() > startup.rank(); --i) {
    all->SwapElements(i, i - 1);
  }
}

void JobTable::SetReason(const std::string& id, const std::string& reason) {
  if (JobRecord* r = FindMutable(id)) r->job.set_reason(reason);
}

JobRecord* JobTable::FindMutable(const std::string& id) {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &jobs_.at(it->second);
}

const JobRecord* JobTable::Find(const std::string& id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &jobs_.at(it->second);
}

const JobRecord* JobTable::FindRequest(const std::string& request_id) const {
  const auto it = by_request_.find(request_id);
  return it == by_request_.end() ? nullptr : &jobs_.at(it->second);
}

std::vector<const JobRecord*> JobTable::List(int64_t before, size_t limit) const {
  std::vector<const JobRecord*> page;
  for (auto it = jobs_.lower_bound(before); it != jobs_.begin() && page.size() < limit;) {
    page.push_back(&(--it)->second);
  }
  return page;
}

std::vector<const JobRecord*> JobTable::Unfinished() const {
  std::vector<const JobRecord*> open;
  for (const auto& [number, record] : jobs_) {
    if (!IsTerminal(record.job.state())) open.push_back(&record);
  }
  return open;
}

Status JobTable::AddEvent(const std::string& job, const v1::JobEvent& event) {
  ASSIGN_OR_RETURN(
      Statement write,
      db_->Prepare("INSERT OR REPLACE INTO events (job, sequence, event) VALUES (?, ?, ?)"));
  write.BindText(1, job).BindInt(2, event.sequence()).BindBlob(3, event.SerializeAsString());
  return Annotate(write.Run(), "store the event");
}

StatusOr<std::vector<v1::JobEvent>> JobTable::ReadEvents(const std::string& job) {
  ASSIGN_OR_RETURN(Statement rows,
                   db_->Prepare("SELECT event FROM events WHERE job=? ORDER BY sequence"));
  rows.BindText(1, job);
  std::vector<v1::JobEvent> events;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, rows.Step());
    if (!row) return events;
    if (!events.emplace_back().ParseFromString(rows.Bytes(0))) {
      return DataLoss("an event of job ", job, " cannot be read");
    }
  }
}

Status JobTable::DropEventsBelow(const std::string& job, int64_t sequence) {
  ASSIGN_OR_RETURN(Statement drop, db_->Prepare("DELETE FROM events WHERE job=? AND sequence<?"));
  drop.BindText(1, job).BindInt(2, sequence);
  return Annotate(drop.Run(), "drop old events");
}

}  // namespace weft::state
