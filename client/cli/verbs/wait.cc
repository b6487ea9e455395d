// weft wait: blocks until a job ends; the exit code is its result.
#include "absl/synchronization/notification.h"

#include "client/cli/exit_code.h"
#include "client/cli/follow.h"
#include "client/cli/verb.h"

namespace weft::cli {
namespace {

// Ends the client's streams when time is up.
class Timer {
 public:
  Timer(Client& client, absl::Duration limit)
      : thread_([this, &client, limit] {
          if (done_.WaitForNotificationWithTimeout(limit)) return;
          expired_ = true;
          client.StopStreams();
        }) {}
  ~Timer() {
    done_.Notify();
    thread_.join();
  }
  bool expired() const { return expired_; }

 private:
  absl::Notification done_;
  std::atomic<bool> expired_ = false;
  std::thread thread_;
};

}  // namespace

VerbBody DeclareWait(CLI::App& app) {
  struct Flags {
    std::string id;
    double timeout_s = 0;
  };
  auto flags = std::make_shared<Flags>();
  app.add_option("id", flags->id, "The job's id")->required()->type_name("JOB_ID");
  app.add_option("--timeout", flags->timeout_s, "Exit with code 7 after this long; default: never")
      ->type_name("SECONDS")
      ->check(CLI::NonNegativeNumber);
  return [flags](Session& session) -> StatusOr<int> {
    ASSIGN_OR_RETURN(const auto client, Connect(session));
    FollowOptions options;
    options.progress = false;
    const absl::Duration limit =
        flags->timeout_s > 0 ? absl::Seconds(flags->timeout_s) : absl::InfiniteDuration();
    Timer timer(*client, limit);
    const auto job = Follow(session, *client, flags->id, options);
    if (!job.ok() && timer.expired()) {
      return DeadlineExceeded("job ", flags->id, " has not ended after ",
                              absl::FormatDuration(limit), "; it goes on");
    }
    if (!job.ok()) return job.status();
    PrintSummary(session, *job);
    return ExitCodeOf(job->state());
  };
}

}  // namespace weft::cli
