#include "worker/data/bpe.h"

#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "worker/data/words.h"

namespace weft::data {
namespace {

std::vector<std::string> WordsOf(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = WordEnd(text, at);
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

TEST(WordEnd, AnyText_FallsIntoTheRulesPieces) {
  using Words = std::vector<std::string>;
  const std::pair<std::string, Words> rows[] = {
      {"Hello world", {"Hello", " world"}},
      {"I'll say we're done.", {"I", "'ll", " say", " we", "'re", " done", "."}},
      {"'tis 'Twas", {"'t", "is", " '", "Twas"}},
      {"a  b", {"a", " ", " b"}},
      {"a \n b", {"a", " \n", " b"}},
      {"a\nb", {"a", "\n", "b"}},
      {"a\n\nb", {"a", "\n", "\n", "b"}},
      {"a  ", {"a", "  "}},
      {"x12 y3", {"x", "12", " y", "3"}},
      {"wait...what?!", {"wait", "...", "what", "?!"}},
      {"caf\xc3\xa9 \xff", {"caf\xc3\xa9", " \xff"}},
      {"", {}},
  };
  for (const auto& [text, words] : rows) EXPECT_EQ(WordsOf(text), words) << text;
}

TEST(WordEnd, LongRuns_AreCut) {
  for (const char c : {'a', '7', '-', ' '}) {
    const std::vector<std::string> words = WordsOf(std::string(600, c));
    ASSERT_EQ(words.size(), 3u) << c;
    EXPECT_EQ(words[0].size(), kMostWordBytes);
    EXPECT_EQ(words[2].size(), 600 - 2 * kMostWordBytes);
  }
}

// The definition: count all pairs anew for each merge.
std::vector<Merge> LearnSlowly(const std::string& text, int64_t vocab) {
  std::vector<std::vector<int32_t>> words;
  for (const std::string& w : WordsOf(text)) {
    words.emplace_back();
    for (const char c : w) words.back().push_back(static_cast<unsigned char>(c));
  }
  std::vector<Merge> merges;
  while (kByteTokens + static_cast<int64_t>(merges.size()) < vocab) {
    std::map<Merge, int64_t> counts;
    for (const auto& w : words) {
      for (size_t i = 0; i + 1 < w.size(); ++i) ++counts[{w[i], w[i + 1]}];
    }
    Merge best = {-1, -1};
    int64_t most = 1;
    for (const auto& [pair, count] : counts) {  // in rising order, so the first wins
      if (count > most) best = pair, most = count;
    }
    if (most < 2) break;
    const auto joined = static_cast<int32_t>(kByteTokens + merges.size());
    for (auto& w : words) {
      std::vector<int32_t> next;
      for (size_t i = 0; i < w.size(); ++i) {
        const bool here = i + 1 < w.size() && w[i] == best.first && w[i + 1] == best.second;
        next.push_back(here ? joined : w[i]);
        i += here;
      }
      w = next;
    }
    merges.push_back(best);
  }
  return merges;
}

std::string Text() {
  // Words with repeats, overlaps (aaa, abab) and ties.
  std::string text;
  uint64_t x = 1;
  const char* const parts[] = {"a", "b",  "ab", "aa", "ba", "abc",
                               " ", "  ", "\n", "7",  "'s", "\xc3\xa9"};
  for (int i = 0; i < 3000; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    text += parts[(x >> 33) % 12];
  }
  return text;
}

TEST(LearnMerges, AnyText_AreThoseOfTheDefinition) {
  EXPECT_EQ(LearnMerges(Text(), 400), LearnSlowly(Text(), 400));
  EXPECT_EQ(LearnMerges("aaaa aaaa", 300), LearnSlowly("aaaa aaaa", 300));
}

TEST(LearnMerges, TiesAndOverlaps_GoToTheSmallerIdsFromTheLeft) {
  // "ab" and "cd" are there twice each, as are then "xab" and so on.
  EXPECT_EQ(LearnMerges("cd ab cd ab", 258).at(0), (Merge{' ', 'a'}));
  EXPECT_EQ(LearnMerges("cdab/cdab", 257), (std::vector<Merge>{{'a', 'b'}}));
  EXPECT_EQ(LearnMerges("aaa", 257), (std::vector<Merge>{{'a', 'a'}}));
}

TEST(LearnMerges, TextWithoutRepeats_GivesFewerTokens) {
  EXPECT_TRUE(LearnMerges("abc", 1000).empty());
  EXPECT_TRUE(LearnMerges("", 1000).empty());
}

TEST(BpeTokenizer, AnyBytes_ComeBack) {
  const std::string text = Text();
  auto t = BpeTokenizer(LearnMerges(text, 300));
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_EQ((*t)->vocab(), 300);
  std::string every;
  for (int i = 0; i < 512; ++i) every += static_cast<char>(i * 37);
  for (const std::string& s : {text, every, std::string("unseen words"), std::string()}) {
    const auto ids = (*t)->Encode(s);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ((*t)->Decode(*ids), s);
  }
  EXPECT_LT((*t)->Encode(text)->size(), text.size() / 2);
}

TEST(BpeTokenizer, Words_AreMergedInTheOrderOfLearning) {
  // 256 = ab, 257 = bc: in "abc" the first merge wins.
  auto t = BpeTokenizer({{'a', 'b'}, {'b', 'c'}, {256, 256}});
  ASSERT_TRUE(t.ok());
  EXPECT_EQ(*(*t)->Encode("abc"), (std::vector<int32_t>{256, 'c'}));
  EXPECT_EQ(*(*t)->Encode("xbc"), (std::vector<int32_t>{'x', 257}));
  EXPECT_EQ(*(*t)->Encode("ababab"), (std::vector<int32_t>{258, 256}));
}

TEST(BpeTokenizer, MergesOfLaterTokensOrTooLongOnes_AreRefused) {
  EXPECT_EQ(BpeTokenizer({{'a', 256}}).status().message(),
            "token 256 joins 97 and 256, wants two that come before it");
  EXPECT_EQ(BpeTokenizer({{-1, 0}}).status().message(),
            "token 256 joins -1 and 0, wants two that come before it");
  std::vector<Merge> doubling = {{'a', 'a'}};
  for (int32_t i = 256; i < 264; ++i) doubling.push_back({i, i});
  EXPECT_EQ(BpeTokenizer(doubling).status().message(), "token 264 is longer than 256 bytes");
}

TEST(TokenizerFrom, Tables_GiveTheSameTokenizer) {
  auto bpe = BpeTokenizer(LearnMerges(Text(), 300));
  ASSERT_TRUE(bpe.ok());
  auto again = TokenizerFrom((*bpe)->table());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*(*again)->Encode(Text()), *(*bpe)->Encode(Text()));
  auto characters = TokenizerFrom({"characters", {'a', 'c', 0x20AC}});
  ASSERT_TRUE(characters.ok());
  EXPECT_EQ(*(*characters)
                 ->Encode("\xe2\x82\xac"
                          "a"),
            (std::vector<int32_t>{2, 0}));
  EXPECT_EQ((*characters)->table().numbers, (std::vector<int32_t>{'a', 'c', 0x20AC}));
  auto bytes = TokenizerFrom({});
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ((*bytes)->vocab(), 256);
}

TEST(TokenizerFrom, OtherTables_AreDataLoss) {
  const std::pair<TokenTable, std::string> rows[] = {
      {{"runes", {}}, "there is no tokenizer with 'runes'"},
      {{"merges", {97}}, "the merges are no pairs"},
      {{"merges", {97, 256}},
       "the merges: token 256 joins 97 and 256, wants two that come before it"},
      {{"characters", {98, 97}}, "the characters are no rising code points"},
      {{"characters", {-1}}, "the characters are no rising code points"},
  };
  for (const auto& [table, message] : rows) {
    const Status status = TokenizerFrom(table).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), message);
  }
}

}  // namespace
}  // namespace weft::data
