#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "worker/data/dataset.h"
#include "worker/data/order.h"

namespace weft::data {
namespace {

struct Row {
  std::vector<int32_t> tokens, targets;
};

Row Sample(const Dataset& d, int64_t number, bool eval = false) {
  const size_t context = static_cast<size_t>(d.slots()[0].sample.elements());
  Row row{std::vector<int32_t>(context), std::vector<int32_t>(context)};
  std::vector<void*> into = {row.tokens.data(), row.targets.data()};
  eval ? d.EvalSample(number, into) : d.TrainSample(number, into);
  return row;
}

class TextTest : public testing::Test {
 protected:
  std::string File(const std::string& text) {
    const std::string path = testing::TempDir() + "/text-" + std::to_string(getpid()) + ".txt";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  TextOptions Options(const std::string& text) {
    TextOptions o;
    o.path = File(text);
    o.tokens = TextTokens::kCharacters;
    o.context = 4;
    o.vocab = 64;
    o.validation = 0.5;
    return o;
  }
};

TEST(Permute, AnySize_VisitsEachRecordOnce) {
  for (int64_t records : {1, 2, 3, 4, 5, 16, 17, 1000}) {
    for (int64_t epoch : {0, 1}) {
      std::set<int64_t> seen;
      for (int64_t p = 0; p < records; ++p) {
        const int64_t r = Permute(9, epoch, records, p);
        ASSERT_TRUE(r >= 0 && r < records);
        seen.insert(r);
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), records);
    }
  }
}

TEST(Permute, OtherSeedOrEpoch_GivesOtherOrder) {
  int same_epoch = 0, same_seed = 0;
  for (int64_t p = 0; p < 1000; ++p) {
    same_epoch += Permute(1, 0, 1000, p) == Permute(1, 1, 1000, p);
    same_seed += Permute(1, 0, 1000, p) == Permute(2, 0, 1000, p);
  }
  EXPECT_LT(same_epoch, 20);
  EXPECT_LT(same_seed, 20);
}

TEST(Reverse, EverySample_IsReversedAfterSep) {
  ReverseOptions o;
  o.context = 64;
  o.seed = 3;
  auto d = OpenReverse(o);
  ASSERT_TRUE(d.ok()) << d.status();
  std::set<int64_t> lengths;
  std::set<int32_t> symbols;
  for (int64_t s = 0; s < 500; ++s) {
    const Row row = Sample(**d, s);
    int64_t n = 0;
    while (row.tokens[static_cast<size_t>(n + 1)] != 1) ++n;
    lengths.insert(n);
    ASSERT_EQ(row.tokens[0], 0);
    ASSERT_EQ(row.tokens[static_cast<size_t>(2 * n + 2)], 2);
    for (int64_t i = 1; i <= n; ++i) {
      const int32_t symbol = row.tokens[static_cast<size_t>(i)];
      symbols.insert(symbol);
      ASSERT_EQ(symbol, row.tokens[static_cast<size_t>(2 * n + 2 - i)]);
    }
    for (int64_t p = 0; p < 64; ++p) {
      const bool counted = p >= n + 1 && p <= 2 * n + 1;
      ASSERT_EQ(row.targets[static_cast<size_t>(p)],
                counted ? row.tokens[static_cast<size_t>(p + 1)] : kIgnored);
    }
  }
  EXPECT_EQ(lengths.size(), 16u);
  EXPECT_EQ(symbols.size(), 32u);
  EXPECT_EQ(*symbols.begin(), 4);
}

TEST(Reverse, EvalSamples_AreNotTheTrainingOnes) {
  ReverseOptions o;
  o.context = 64;
  auto d = OpenReverse(o);
  ASSERT_TRUE(d.ok());
  int equal = 0;
  for (int64_t s = 0; s < 100; ++s) equal += Sample(**d, s).tokens == Sample(**d, s, true).tokens;
  EXPECT_LE(equal, 2);  // sequences of one symbol may coincide
}

TEST_F(TextTest, Windows_AreShiftedByOneAndStayInTheirPart) {
  auto d = OpenText(Options("abcdefghijklmnopqrst"));
  ASSERT_TRUE(d.ok()) << d.status();
  std::set<int32_t> starts;
  for (int64_t s = 0; s < 6; ++s) {
    const Row row = Sample(**d, s);
    starts.insert(row.tokens[0]);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(row.targets[i], row.tokens[i] + 1);
      EXPECT_LT(row.targets[i], 10);
    }
  }
  EXPECT_EQ(starts.size(), 6u);
  ASSERT_EQ((*d)->eval_samples(), 3);
  EXPECT_EQ(Sample(**d, 2, true).tokens, (std::vector<int32_t>{18, 0, 0, 0}));
  EXPECT_EQ(Sample(**d, 2, true).targets, (std::vector<int32_t>{19, kIgnored, kIgnored, kIgnored}));
}

TEST_F(TextTest, BadFiles_AreRefusedWithTheReason) {
  struct Case {
    std::string text;
    std::string message;
  };
  const Case cases[] = {
      {"", "is empty"},
      {"abcdef", "fewer than one window of 5"},
      {"abcdefghijk\xff", "not UTF-8 at byte 11"},
      {"abcdefghijk\xc0\x80", "not UTF-8 at byte 11"},
      {"abcdefghijk\xed\xa0\x80", "not UTF-8 at byte 11"},
  };
  for (const Case& c : cases) {
    auto d = OpenText(Options(c.text));
    ASSERT_FALSE(d.ok()) << c.message;
    EXPECT_NE(std::string(d.status().message()).find(c.message), std::string::npos) << d.status();
  }
  TextOptions absent = Options("x");
  absent.path = "/nonexistent/file";
  EXPECT_TRUE(absl::IsNotFound(OpenText(absent).status()));
  TextOptions small = Options("abcdefghijklmnopqrst");
  small.vocab = 5;
  EXPECT_NE(OpenText(small).status().message().find("20 distinct tokens"), absl::string_view::npos);
}

TEST_F(TextTest, Tokenizer_RoundTripsUnicode) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82 z";
  auto t = OpenTokenizer(Options(text));
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_EQ((*t)->vocab(), 6);
  auto ids = (*t)->Encode(text);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ((*t)->Decode(*ids), text);
  EXPECT_FALSE((*t)->Encode("q").ok());
}

TEST_F(TextTest, BytePairs_AreLearnedFromTheTrainingPartAlone) {
  std::string train, held_out;
  for (int i = 0; i < 50; ++i) train += "abab ", held_out += "xyxy ";
  TextOptions options = Options(train + held_out);
  options.tokens = TextTokens::kBpe;
  options.bpe_vocab = options.vocab = 300;
  auto d = OpenText(options);
  ASSERT_TRUE(d.ok()) << d.status();
  const Tokenizer& t = *(*d)->tokenizer();
  EXPECT_EQ(t.Encode(" abab")->size(), 1u);
  EXPECT_EQ(t.Encode(" xyxy")->size(), 5u);
  for (int64_t s = 0; s < 40; ++s) {
    EXPECT_EQ(t.Decode(Sample(**d, s).tokens).find_first_of("xy"), std::string::npos);
  }
  EXPECT_EQ(t.Decode(Sample(**d, 0, true).tokens), "xyxy");
  auto again = OpenTokenizer(options);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->table().numbers, t.table().numbers);
}

}  // namespace
}  // namespace weft::data
