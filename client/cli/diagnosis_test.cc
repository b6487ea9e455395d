#include "client/cli/diagnosis.h"

#include <functional>
#include <map>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace weft::cli {
namespace {

using nlohmann::json;

json Probe() {
  return {{"version", "1.2.3"},
          {"cpu",
           {{"model", "A CPU"},
            {"cores", 8},
            {"memory_bytes", int64_t{16} << 30},
            {"instruction_sets", {"avx2", "sse2"}}}},
          {"cuda",
           {{"built", true},
            {"driver", "580.65.06"},
            {"driver_cuda", "13.0"},
            {"built_with", {{"cuda runtime", "13.0"}, {"nccl", "2.28.9"}}},
            {"found", {{"cuda runtime", "13.0"}, {"nccl", "2.28.9"}}},
            {"gpus",
             {{{"name", "NVIDIA H200"},
               {"memory_bytes", int64_t{141} << 30},
               {"processors", 132},
               {"compute_capability", "9.0"}}}},
            {"error", ""},
            {"cupti", "130000"},
            {"cupti_error", ""}}},
          {"limits",
           {{"open_files", 8192},
            {"open_files_hard", 8192},
            {"shared_memory_error", ""},
            {"shm_free_bytes", int64_t{1} << 30}}}};
}

std::map<std::string, Check> ByName(const json& probe) {
  std::map<std::string, Check> checks;
  for (Check& check : ProbeChecks("a line of a log\n" + probe.dump() + "\n")) {
    checks[check.name] = check;
  }
  return checks;
}

TEST(Diagnosis, GoodMachine_IsAllGood) {
  const auto checks = ProbeChecks(Probe().dump());
  EXPECT_TRUE(AllWork(checks));
  for (const Check& check : checks) {
    EXPECT_EQ(check.state, Check::State::kGood) << check.name;
    EXPECT_EQ(check.advice, "") << check.name;
  }
  const auto named = ByName(Probe());
  EXPECT_EQ(named.at("GPU 0").found,
            "NVIDIA H200, 141.0 GiB, compute capability 9.0, 132 processors");
  EXPECT_EQ(named.at("driver").found, "580.65.06, CUDA 13.0");
}

struct Row {
  const char* what;
  std::function<void(json*)> spoil;
  const char* check;
  Check::State state;
  const char* says;  // in its advice
};

TEST(Diagnosis, EachFault_HasItsCheckAndAdvice) {
  const Row rows[] = {
      {"build without CUDA",
       [](json* p) {
         (*p)["cuda"] = {{"built", false}};
       },
       "CUDA", Check::State::kNote, "deploy/build.sh"},
      {"no driver",
       [](json* p) {
         (*p)["cuda"]["driver"] = (*p)["cuda"]["driver_cuda"] = "";
         (*p)["cuda"]["gpus"] = json::array();
       },
       "driver", Check::State::kNote, "install a driver for CUDA 13.0"},
      {"old driver", [](json* p) { (*p)["cuda"]["driver_cuda"] = "12.8"; }, "driver",
       Check::State::kMissing, "update the driver"},
      {"no GPU under a driver", [](json* p) { (*p)["cuda"]["gpus"] = json::array(); }, "GPUs",
       Check::State::kMissing, "nvidia-smi"},
      {"other NCCL", [](json* p) { (*p)["cuda"]["found"]["nccl"] = "3.0.1"; }, "nccl",
       Check::State::kMissing, "needs 2.28.9"},
      {"older NCCL", [](json* p) { (*p)["cuda"]["found"]["nccl"] = "2.20.1"; }, "nccl",
       Check::State::kNote, "older than the 2.28.9"},
      {"no CUPTI",
       [](json* p) {
         (*p)["cuda"]["cupti"] = "";
         (*p)["cuda"]["cupti_error"] = "install CUPTI";
       },
       "cupti", Check::State::kNote, "install CUPTI"},
      {"few files", [](json* p) { (*p)["limits"]["open_files"] = 64; }, "open files",
       Check::State::kMissing, "ulimit -n 4096"},
      {"no memfd", [](json* p) { (*p)["limits"]["shared_memory_error"] = "Permission denied"; },
       "shared memory", Check::State::kMissing, "transport: tcp"},
      {"small shm", [](json* p) { (*p)["limits"]["shm_free_bytes"] = 1000; }, "/dev/shm",
       Check::State::kNote, "--shm-size"},
      {"old CPU", [](json* p) { (*p)["cpu"]["instruction_sets"] = {"sse2"}; }, "instruction sets",
       Check::State::kNote, "slower"},
  };
  for (const Row& row : rows) {
    json probe = Probe();
    row.spoil(&probe);
    const auto checks = ByName(probe);
    ASSERT_TRUE(checks.contains(row.check)) << row.what;
    const Check& check = checks.at(row.check);
    EXPECT_EQ(check.state, row.state) << row.what;
    EXPECT_NE(check.advice.find(row.says), std::string::npos) << row.what << ": " << check.advice;
  }
}

TEST(Diagnosis, WorkerThatDoesNotStart_SaysWhatIsMissing) {
  const auto checks = ProbeChecks(
      "weft-worker: error while loading shared libraries: libnccl.so.2: cannot open shared object "
      "file\n");
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_FALSE(AllWork(checks));
  EXPECT_NE(checks[0].found.find("libnccl.so.2"), std::string::npos);
  EXPECT_NE(checks[0].advice.find("LD_LIBRARY_PATH"), std::string::npos);
  EXPECT_FALSE(AllWork(ProbeChecks("")));
  EXPECT_FALSE(AllWork(ProbeChecks(R"({"cpu": 3})")));
}

TEST(Diagnosis, Json_HasEachCheck) {
  const json value = json::parse(ChecksJson(ProbeChecks("")));
  EXPECT_EQ(value["ok"], false);
  EXPECT_EQ(value["checks"][0]["name"], "weft-worker");
  EXPECT_EQ(value["checks"][0]["state"], "missing");
}

}  // namespace
}  // namespace weft::cli
