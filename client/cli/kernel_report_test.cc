#include "client/cli/kernel_report.h"

#include "gtest/gtest.h"

namespace weft::cli {
namespace {

constexpr char kReport[] = R"({
  "job": "first", "rank": 0, "device": "NVIDIA H200", "first_step": 5, "steps": 5,
  "us_per_step": 1300, "kernel_us_per_step": 1200,
  "ceilings": {"memory_bytes_per_s": 4.8e12, "fp32_flops_per_s": 6.7e13,
               "tf32_flops_per_s": 5e14, "bf16_flops_per_s": 1e15},
  "kernels": [
    {"op": "matmul", "section": "train", "node": "h0.mlp.up", "nodes": 12, "kernel": "sm90_gemm",
     "operands": "bf16[8,4]", "launches_per_step": 12, "us_per_step": 900, "share": 0.75,
     "bytes_per_s": 2e12, "flops_per_s": 5e14, "of_ceiling": 0.5},
    {"kernel": "copy to device", "launches_per_step": 2, "us_per_step": 299.9, "share": 0.2499},
    {"kernel": "tiny", "launches_per_step": 1, "us_per_step": 0.1, "share": 0.0001}]})";

TEST(KernelReport, Rows_AreLongestFirstAndSmallOnesOne) {
  const auto report = ReadKernelReport(kReport);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(FormatTable(report->table, true),
            "OP      KERNEL          WHERE          RUNS     US   SHARE  GB/S  TFLOP/S  PEAK\n"
            "matmul  sm90_gemm       h0.mlp.up x12    12  900.0  75.0 %  2000      500  50 %\n"
            "-       copy to device                    2  299.9  25.0 %     -        -     -\n"
            "(rest)                                    1    0.1   0.0 %     -        -     -\n");
  EXPECT_EQ(report->summary,
            "steps 5 to 9 of rank 0 on NVIDIA H200: 1.300 ms a step, 1.200 ms of it in kernels\n"
            "ceilings: 4800 GB/s, TFLOP/s fp32 67, tf32 500, bf16 1e+03");
}

TEST(KernelReport, Note_IsToldLast) {
  const auto report = ReadKernelReport(R"({"kernels": [], "note": "no CUPTI; install it"})");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_NE(report->summary.find("\nno CUPTI; install it"), std::string::npos);
}

TEST(KernelReport, OtherText_IsRefused) {
  for (const char* text : {"", "[]", "{}", "{\"kernels\": 1}", "{\"kernels\": [1]}",
                           "{\"kernels\": [{\"share\": \"x\"}]}"}) {
    EXPECT_FALSE(ReadKernelReport(text).ok()) << text;
  }
}

}  // namespace
}  // namespace weft::cli
