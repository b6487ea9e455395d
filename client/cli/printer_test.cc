#include "client/cli/printer.h"

#include <sstream>

#include "gtest/gtest.h"

namespace weft::cli {
namespace {

TEST(FormatTable, WideCharacters_KeepColumnsAligned) {
  const Table table{
      .header = {"NAME", "STEP"}, .rows = {{"größe", "7"}, {"a", "1000"}}, .right = {false, true}};
  EXPECT_EQ(FormatTable(table, true),
            "NAME   STEP\n"
            "größe     7\n"
            "a      1000\n");
  EXPECT_EQ(FormatTable(table, false),
            "größe     7\n"
            "a      1000\n");
}

TEST(FormatTable, EmptyLastCell_LeavesNoSpaces) {
  EXPECT_EQ(FormatTable({.header = {}, .rows = {{"a", ""}, {"b", "c"}}, .right = {}}, true),
            "a\nb  c\n");
}

TEST(Format, Numbers_ReadWell) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(FormatCount(403072), "403,072");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(-1234), "-1,234");
  EXPECT_EQ(FormatScaled(9.72e9), "9.72 G");
  EXPECT_EQ(FormatRate(45800), "45.8k tokens/s");
  EXPECT_EQ(FormatRate(12), "12 tokens/s");
  EXPECT_EQ(FormatSeconds(7.4), "0:07");
  EXPECT_EQ(FormatSeconds(725), "12:05");
  EXPECT_EQ(FormatSeconds(11045), "3:04:05");
  EXPECT_EQ(FormatSeconds(-1), "-");
}

TEST(Printer, DataAndTalk_GoToTheirStreams) {
  std::ostringstream out, err;
  Printer printer({}, &out, &err);
  printer.Line("data");
  printer.TalkLine("talk");
  printer.Error(Unavailable("nobody answers"));
  EXPECT_EQ(out.str(), "data\n");
  EXPECT_EQ(
      err.str(),
      "talk\nerror: nobody answers\n  start a coordinator with weft-coordinator, name another "
      "with --coordinator, or run the job on this machine alone with: weft run JOB\n");
}

TEST(Printer, Color_OnlyWhenAsked) {
  std::ostringstream out, err;
  Printer printer({.color_out = true, .color_err = true}, &out, &err);
  printer.Rows({.header = {"A"}, .rows = {{"1"}}, .right = {}});
  printer.Error(InvalidArgument("wrong"));
  EXPECT_EQ(out.str(), "\033[1mA\033[0m\n1\n");
  EXPECT_EQ(err.str(), "\033[31;1merror:\033[0m wrong\n");
}

}  // namespace
}  // namespace weft::cli
