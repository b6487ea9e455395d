#include "worker/core/device/cpu_device.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_join.h"
#include "hwy/targets.h"

namespace weft {
namespace {

// Spins between calls before a thread sleeps: about the time that a step's longest serial part
// takes.
constexpr int kSpins = 4096;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Tiles are claimed one by one out of `claim_`, whose upper half numbers the call, so a thread that
// comes late to a call needs no waiting for: its claim fails. For that, `claim_` is closed before
// anything of the next call is written. A thread that has read a new value (release, acquire)
// therefore cannot claim by the old number any more.
class ThreadPool final : public TileRunner {
 public:
  explicit ThreadPool(int threads) {
    for (int i = 1; i < threads; ++i) {
      threads_.emplace_back([this, i] { Work(i); });
    }
  }

  ~ThreadPool() override {
    stop_.store(true);
    calls_.fetch_add(1);
    calls_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  int threads() const override { return static_cast<int>(threads_.size()) + 1; }

 protected:
  void Run(int64_t tiles, RawBody body, void* context) override {
    if (threads_.empty() || tiles <= 1) {
      for (int64_t i = 0; i < tiles; ++i) body(context, i, 0);
      return;
    }
    for (int64_t first = 0; first < tiles; first += kMostTiles) {
      RunSome(first, std::min(tiles - first, kMostTiles), body, context);
    }
  }

 private:
  static constexpr int64_t kMostTiles = int64_t{1} << 31;
  static constexpr uint64_t kClosed = 0xffffffffu;  // no call has as many tiles

  void RunSome(int64_t first, int64_t tiles, RawBody body, void* context) {
    const uint64_t call = ((claim_.load(std::memory_order_relaxed) >> 32) + 1) << 32;
    claim_.store(call | kClosed, std::memory_order_relaxed);
    first_.store(first, std::memory_order_release);
    tiles_.store(tiles, std::memory_order_release);
    body_.store(body, std::memory_order_release);
    context_.store(context, std::memory_order_release);
    finished_.store(0, std::memory_order_relaxed);
    claim_.store(call, std::memory_order_release);
    calls_.fetch_add(1);
    calls_.notify_all();
    TakeTiles(0);
    for (int spins = 0; finished_.load(std::memory_order_acquire) != tiles; ++spins) {
      if (spins < kSpins) {
        Pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  // Runs tiles of the current call until none is left.
  void TakeTiles(int thread) {
    uint64_t claim = claim_.load(std::memory_order_acquire);
    const uint64_t call = claim >> 32;
    const int64_t first = first_.load(std::memory_order_acquire);
    const int64_t tiles = tiles_.load(std::memory_order_acquire);
    const RawBody body = body_.load(std::memory_order_acquire);
    void* const context = context_.load(std::memory_order_acquire);
    while (claim >> 32 == call) {
      const int64_t tile = static_cast<int64_t>(claim & 0xffffffffu);
      if (tile >= tiles) return;
      if (!claim_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel)) continue;
      body(context, first + tile, thread);
      finished_.fetch_add(1, std::memory_order_release);
      claim = claim_.load(std::memory_order_acquire);
    }
  }

  void Work(int thread) {
    uint32_t seen = 0;
    while (true) {
      int spins = 0;
      while (calls_.load(std::memory_order_acquire) == seen) {
        if (++spins < kSpins) {
          Pause();
        } else {
          calls_.wait(seen);
        }
      }
      seen = calls_.load(std::memory_order_acquire);
      if (stop_.load()) return;
      TakeTiles(thread);
    }
  }

  std::atomic<uint64_t> claim_{0};    // call number << 32 | next tile
  std::atomic<int64_t> finished_{0};  // tiles of the call that are done
  std::atomic<uint32_t> calls_{0};    // threads sleep on it
  std::atomic<int64_t> first_{0};
  std::atomic<int64_t> tiles_{0};
  std::atomic<RawBody> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// Guards the choice itself; kernels read Highway's own copy of it.
std::mutex& ChoiceMutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}

std::string& ChosenName() {
  static std::string* const name = new std::string;
  return *name;
}

// Highway's targets that are better than `name`.
int64_t BetterTargets(const std::string& name) {
  constexpr int64_t kAvx512 = HWY_AVX3 | HWY_AVX3_DL;
  if (name == "avx512") return HWY_AVX3_DL;
  if (name == "avx2") return kAvx512;
  return kAvx512 | HWY_AVX2 | HWY_SSE4 | HWY_SSSE3;
}

}  // namespace

std::unique_ptr<TileRunner> MakeThreadPool(int threads) {
  return std::make_unique<ThreadPool>(std::max(threads, 1));
}

std::vector<std::string> SupportedInstructionSets() {
  // Asked of the CPU, not of Highway, which a choice already made would narrow.
  std::vector<std::string> names;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512cd")) {
    names.push_back("avx512");
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2")) {
    names.push_back("avx2");
  }
  names.push_back("sse2");
  return names;
}

Status UseInstructionSet(const std::string& name) {
  const std::vector<std::string> supported = SupportedInstructionSets();
  if (std::find(supported.begin(), supported.end(), name) == supported.end()) {
    return InvalidArgument("instruction set '", name,
                           "' is not one that this CPU has: ", absl::StrJoin(supported, ", "));
  }
  const std::lock_guard<std::mutex> lock(ChoiceMutex());
  const std::string current = ChosenName().empty() ? supported[0] : ChosenName();
  // Highway marks its dispatch table as read once any kernel has run.
  if (hwy::GetChosenTarget().IsInitialized()) {
    if (name == current) return absl::OkStatus();
    return FailedPrecondition("kernels already run with '", current, "'; start a new process for '",
                              name, "'");
  }
  hwy::DisableTargets(BetterTargets(name));
  ChosenName() = name;
  return absl::OkStatus();
}

std::string CurrentInstructionSet() {
  const std::lock_guard<std::mutex> lock(ChoiceMutex());
  return ChosenName().empty() ? SupportedInstructionSets()[0] : ChosenName();
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, 10, "model name") != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace weft
