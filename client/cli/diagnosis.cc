#include "client/cli/diagnosis.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace weft::cli {
namespace {

using nlohmann::json;
using State = Check::State;

constexpr int64_t kLeastOpenFiles = 256;
constexpr int64_t kGoodOpenFiles = 4096;
// NCCL keeps its buffers between processes of one machine there.
constexpr int64_t kGoodShmBytes = int64_t{64} << 20;

// The first two numbers of a version: within these, libraries keep their interface.
std::pair<int, int> MajorMinor(const std::string& version) {
  int major = 0, minor = 0;
  std::sscanf(version.c_str(), "%d.%d", &major, &minor);
  return {major, minor};
}

Check LibraryCheck(const std::string& name, const std::string& found, const std::string& needed) {
  Check check{.name = name, .state = State::kGood, .found = found, .advice = ""};
  if (MajorMinor(found).first != MajorMinor(needed).first) {
    check.state = State::kMissing;
    check.advice = absl::StrCat("needs ", needed, ": put that version first on LD_LIBRARY_PATH");
  } else if (MajorMinor(found) < MajorMinor(needed)) {
    check.state = State::kNote;
    check.advice = absl::StrCat("older than the ", needed, " this was built with");
  } else if (found != needed) {
    check.found = absl::StrCat(found, " (built with ", needed, ")");
  }
  return check;
}

void AddCuda(const json& cuda, std::vector<Check>* checks) {
  if (!cuda.value("built", false)) {
    checks->push_back(
        {"CUDA", State::kNote, "this build has none",
         "for GPUs: install the CUDA toolkit, then build again with deploy/build.sh"});
    return;
  }
  const std::string driver = cuda.value("driver", "");
  const std::string driver_cuda = cuda.value("driver_cuda", "");
  const std::string needed = cuda["built_with"].value("cuda runtime", "");
  if (driver.empty() && driver_cuda.empty()) {
    checks->push_back({"driver", State::kNote, "no NVIDIA driver: jobs run on the CPU",
                       absl::StrCat("for GPUs: install a driver for CUDA ", needed, " or newer")});
  } else {
    Check check{.name = "driver", .state = State::kGood, .found = driver, .advice = ""};
    absl::StrAppend(&check.found, driver.empty() ? "" : ", ", "CUDA ", driver_cuda);
    if (MajorMinor(driver_cuda).first < MajorMinor(needed).first) {
      check.state = State::kMissing;
      check.advice = absl::StrCat("needs one for CUDA ", needed, ": update the driver");
    }
    checks->push_back(std::move(check));
  }
  const json gpus = cuda.value("gpus", json::array());
  for (size_t i = 0; i < gpus.size(); ++i) {
    const json& gpu = gpus[i];
    checks->push_back({absl::StrCat("GPU ", i), State::kGood,
                       absl::StrCat(gpu.value("name", "?"), ", ",
                                    FormatBytes(gpu.value("memory_bytes", int64_t{0})),
                                    ", compute capability ", gpu.value("compute_capability", "?"),
                                    ", ", gpu.value("processors", 0), " processors"),
                       ""});
  }
  if (gpus.empty()) {
    // With a driver there should be one; without, there is nothing to see.
    const bool broken = !driver.empty();
    checks->push_back(
        {"GPUs", broken ? State::kMissing : State::kNote,
         absl::StrCat("none: ", cuda.value("error", "no device")),
         broken ? "check nvidia-smi, CUDA_VISIBLE_DEVICES and the container's devices" : ""});
  }
  for (const auto& [name, version] : cuda["built_with"].items()) {
    checks->push_back(
        LibraryCheck(name, cuda["found"].value(name, ""), version.get<std::string>()));
  }
  const std::string cupti = cuda.value("cupti", "");
  checks->push_back({"cupti", cupti.empty() ? State::kNote : State::kGood,
                     cupti.empty() ? "not found; only weft run --profile needs it"
                                   : absl::StrCat("API version ", cupti),
                     cuda.value("cupti_error", "")});
}

void AddLimits(const json& limits, bool gpus, std::vector<Check>* checks) {
  const int64_t files = limits.value("open_files", int64_t{0});
  checks->push_back(
      {"open files",
       files < kLeastOpenFiles  ? State::kMissing
       : files < kGoodOpenFiles ? State::kNote
                                : State::kGood,
       absl::StrCat(files, " a process"),
       files < kGoodOpenFiles ? absl::StrCat("raise it with ulimit -n ", kGoodOpenFiles) : ""});
  const std::string error = limits.value("shared_memory_error", "");
  checks->push_back({"shared memory", error.empty() ? State::kGood : State::kMissing,
                     error.empty() ? "between ranks of this machine" : error,
                     error.empty() ? "" : "let processes use memfd_create, or use transport: tcp"});
  const int64_t shm = limits.value("shm_free_bytes", int64_t{0});
  const bool small = shm < kGoodShmBytes;
  if (gpus || !small) {
    checks->push_back({"/dev/shm", small ? State::kNote : State::kGood,
                       absl::StrCat(FormatBytes(shm), " free"),
                       small ? "NCCL wants some 64 MiB there; in a container: --shm-size=1g" : ""});
  }
}

// Why there is no probe: what the loader or the shell said.
Check WorkerCheck(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  Check check{.name = "weft-worker",
              .state = State::kMissing,
              .found = lines.empty() ? "says nothing" : lines.back(),
              .advice = "build all three programs with deploy/build.sh, or copy them side by side"};
  if (absl::StrContains(text, "error while loading shared libraries")) {
    check.advice =
        "install the library and put its folder on LD_LIBRARY_PATH; CUDA's come with the toolkit, "
        "or with pip install nvidia-cublas nvidia-cudnn-cu13 nvidia-nccl-cu13";
  }
  return check;
}

}  // namespace

const char* NameOf(Check::State state) {
  constexpr const char* kNames[] = {"ok", "note", "missing"};
  return kNames[static_cast<int>(state)];
}

std::vector<Check> ProbeChecks(const std::string& text) {
  json probe;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    json value = json::parse(std::string(line), nullptr, /*allow_exceptions=*/false);
    if (value.is_object() && value.contains("cpu")) probe = std::move(value);
  }
  if (probe.is_null()) return {WorkerCheck(text)};
  std::vector<Check> checks;
  try {
    checks.push_back({"weft-worker", State::kGood, probe.value("version", "?"), ""});
    const json& cpu = probe.at("cpu");
    checks.push_back({"CPU", State::kGood,
                      absl::StrCat(cpu.value("model", "?"), ", ", cpu.value("cores", 0), " cores, ",
                                   FormatBytes(cpu.value("memory_bytes", int64_t{0}))),
                      ""});
    const auto sets = cpu.value("instruction_sets", std::vector<std::string>());
    const bool slow = std::find(sets.begin(), sets.end(), "avx2") == sets.end();
    checks.push_back({"instruction sets", slow ? State::kNote : State::kGood,
                      absl::StrJoin(sets, ", "),
                      slow ? "works, and is several times slower than with AVX2" : ""});
    const json& cuda = probe.at("cuda");
    AddCuda(cuda, &checks);
    AddLimits(probe.at("limits"), !cuda.value("gpus", json::array()).empty(), &checks);
  } catch (const json::exception& e) {
    checks.push_back({"weft-worker", State::kMissing, absl::StrCat("an unknown probe: ", e.what()),
                      "use weft and weft-worker of one build"});
  }
  return checks;
}

bool AllWork(const std::vector<Check>& checks) {
  return std::none_of(checks.begin(), checks.end(),
                      [](const Check& check) { return check.state == State::kMissing; });
}

Table CheckTable(const std::vector<Check>& checks) {
  Table table;
  table.header = {"CHECK", "STATE", "FOUND"};
  for (const Check& check : checks) {
    table.rows.push_back({check.name, NameOf(check.state),
                          check.advice.empty()  ? check.found
                          : check.found.empty() ? check.advice
                                                : absl::StrCat(check.found, "; ", check.advice)});
  }
  return table;
}

std::string ChecksJson(const std::vector<Check>& checks) {
  json list = json::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"state", NameOf(check.state)},
                    {"found", check.found},
                    {"advice", check.advice}});
  }
  const json value = {{"ok", AllWork(checks)}, {"checks", std::move(list)}};
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace weft::cli
