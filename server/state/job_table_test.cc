#include "server/state/job_table.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>

#include "server/state/job_state.h"
#include "tests/support/status_matchers.h"

namespace weft::state {
namespace {

using ::weft::testing::IsStatus;

std::string FreshPath(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/" + name + ".db";
  for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path + suffix);
  return path;
}

JobRecord Record(const std::string& name) {
  JobRecord record;
  record.job.mutable_spec()->set_name(name);
  record.job.set_state(v1::JOB_STATE_QUEUED);
  record.event_ceiling = 100;
  return record;
}

v1::JobEvent Event(int64_t sequence) {
  v1::JobEvent event;
  event.set_sequence(sequence);
  event.set_note("n");
  return event;
}

TEST(JobTable, Insert_SurvivesSigkillRightAfterTheAnswer) {
  const std::string path = FreshPath("kill");
  int answer[2];
  ASSERT_EQ(pipe(answer), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto table = JobTable::Open(path);
    auto stored = (*table)->Insert(Record("a"), Event(1));
    const std::string id = (*stored)->job.id();
    // The answer that the client acts upon; after it the process may go at any time.
    if (write(answer[1], id.data(), id.size()) < 0) _exit(1);
    kill(getpid(), SIGKILL);
  }
  close(answer[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  char id[64];
  const ssize_t got = read(answer[0], id, sizeof id);
  close(answer[0]);
  ASSERT_GT(got, 0);
  auto table = JobTable::Open(path);
  ASSERT_TRUE(table.ok()) << table.status();
  const JobRecord* found = (*table)->Find(std::string(id, static_cast<size_t>(got)));
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->job.spec().name(), "a");
  EXPECT_EQ((*table)->ReadEvents(found->job.id())->size(), 1u);
}

TEST(JobTable, Reopen_KeepsEveryField) {
  const std::string path = FreshPath("fields");
  JobRecord record = Record("a");
  record.request_id = "r";
  record.request_hash = "h";
  {
    auto table = JobTable::Open(path);
    ASSERT_TRUE(table.ok()) << table.status();
    record = **(*table)->Insert(record, Event(1));
    record.numerics.set_instruction_set("avx2");
    record.has_numerics = true;
    record.resume = true;
    record.workers = {"w1", "w2"};
    record.event_ceiling = 2000;
    record.job.set_state(v1::JOB_STATE_PREPARING);
    const v1::JobEvent event = Event(2);
    ASSERT_TRUE((*table)->Update(record, &event).ok());
  }
  auto table = JobTable::Open(path);
  ASSERT_TRUE(table.ok()) << table.status();
  const JobRecord* found = (*table)->FindRequest("r");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->job.SerializeAsString(), record.job.SerializeAsString());
  EXPECT_EQ(found->numerics.instruction_set(), "avx2");
  EXPECT_TRUE(found->has_numerics);
  EXPECT_TRUE(found->resume);
  EXPECT_EQ(found->workers, record.workers);
  EXPECT_EQ(found->event_ceiling, 2000);
  EXPECT_EQ(found->request_hash, "h");
  EXPECT_EQ((*table)->ReadEvents(found->job.id())->size(), 2u);
  ASSERT_TRUE((*table)->DropEventsBelow(found->job.id(), 2).ok());
  EXPECT_EQ((*table)->ReadEvents(found->job.id())->size(), 1u);
}

TEST(JobTable, Update_StateThatMayNotFollow_IsRefusedAndChangesNothing) {
  auto table = JobTable::Open(FreshPath("states"));
  ASSERT_TRUE(table.ok());
  JobRecord record = **(*table)->Insert(Record("a"), Event(1));
  record.job.set_state(v1::JOB_STATE_CANCELLED);
  ASSERT_TRUE((*table)->Update(record).ok());
  for (const v1::JobState next :
       {v1::JOB_STATE_QUEUED, v1::JOB_STATE_RUNNING, v1::JOB_STATE_DONE, v1::JOB_STATE_FAILED}) {
    record.job.set_state(next);
    EXPECT_THAT((*table)->Update(record),
                IsStatus(absl::StatusCode::kInternal, "may not go from cancelled"));
  }
  EXPECT_EQ((*table)->Find(record.job.id())->job.state(), v1::JOB_STATE_CANCELLED);
}

TEST(JobTable, Open_ForeignFile_IsDataLoss) {
  const std::string path = FreshPath("foreign");
  FILE* file = std::fopen(path.c_str(), "w");
  std::fputs("this is a text file, and long enough to be taken for a database header, or is it?",
             file);
  std::fclose(file);
  EXPECT_THAT(JobTable::Open(path), IsStatus(absl::StatusCode::kDataLoss, path));
}

TEST(JobTable, Open_OtherSchema_IsRefused) {
  const std::string path = FreshPath("schema");
  { ASSERT_TRUE(Database::Open(path, 99, "CREATE TABLE t (x);").ok()); }
  EXPECT_THAT(JobTable::Open(path),
              IsStatus(absl::StatusCode::kFailedPrecondition, "schema version 99"));
}

TEST(JobState, Table_OneTerminalStateOnce) {
  EXPECT_TRUE(MayFollow(v1::JOB_STATE_QUEUED, v1::JOB_STATE_PREPARING));
  EXPECT_TRUE(MayFollow(v1::JOB_STATE_RUNNING, v1::JOB_STATE_DONE));
  EXPECT_FALSE(MayFollow(v1::JOB_STATE_QUEUED, v1::JOB_STATE_DONE));
  EXPECT_FALSE(MayFollow(v1::JOB_STATE_QUEUED, v1::JOB_STATE_RUNNING));
  for (int to = v1::JobState_MIN; to <= v1::JobState_MAX; ++to) {
    for (const auto from : {v1::JOB_STATE_DONE, v1::JOB_STATE_FAILED, v1::JOB_STATE_CANCELLED}) {
      EXPECT_FALSE(MayFollow(from, static_cast<v1::JobState>(to)));
    }
  }
}

}  // namespace
}  // namespace weft::state
