#include "worker/data/bpe.h"

#include <algorithm>
#include <queue>
#include <string>

#include "absl/container/flat_hash_map.h"

#include "worker/data/words.h"

namespace weft::data {
namespace {

// A word of the text as tokens, and how often it is there.
struct Word {
  std::vector<int32_t> tokens;
  int64_t count = 0;
};

std::vector<int32_t> BytesOf(absl::string_view word) {
  std::vector<int32_t> tokens;
  for (const char c : word) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// Each (left, right) becomes `joined`, from the left.
void Join(const Merge& pair, int32_t joined, std::vector<int32_t>* tokens) {
  size_t to = 0;
  for (size_t from = 0; from < tokens->size(); ++to) {
    const bool here = from + 1 < tokens->size() && (*tokens)[from] == pair.first &&
                      (*tokens)[from + 1] == pair.second;
    (*tokens)[to] = here ? joined : (*tokens)[from];
    from += here ? 2 : 1;
  }
  tokens->resize(to);
}

// Keeps the count of every pair up to date while words are joined, so that a merge costs as much as
// the words that it changes.
class Learner {
 public:
  explicit Learner(absl::string_view text) {
    absl::flat_hash_map<absl::string_view, int64_t> counts;
    for (size_t at = 0; at < text.size();) {
      const size_t end = WordEnd(text, at);
      ++counts[text.substr(at, end - at)];
      at = end;
    }
    for (const auto& [word, count] : counts) words_.push_back({BytesOf(word), count});
    for (size_t w = 0; w < words_.size(); ++w) {
      CountPairs(words_[w].tokens, words_[w].count);
      for (size_t i = 0; i + 1 < words_[w].tokens.size(); ++i) NoteWord(w, i);
    }
    for (const auto& [pair, use] : uses_) candidates_.push({use.count, pair});
  }

  std::vector<Merge> Learn(int64_t vocab) {
    std::vector<Merge> merges;
    while (kByteTokens + static_cast<int64_t>(merges.size()) < vocab && !candidates_.empty()) {
      const Candidate best = candidates_.top();
      candidates_.pop();
      // A pair of old tokens only becomes rarer, so what the queue says is never too little.
      const int64_t count = uses_[best.pair].count;
      if (count < best.count) {
        if (count > 0) candidates_.push({count, best.pair});
        continue;
      }
      if (count < 2) break;
      JoinEverywhere(best.pair, static_cast<int32_t>(kByteTokens + merges.size()));
      merges.push_back(best.pair);
    }
    return merges;
  }

 private:
  struct Use {
    int64_t count = 0;
    std::vector<size_t> words;  // where it is or was
  };
  struct Candidate {
    int64_t count;
    Merge pair;
    // The queue gives the greatest first.
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  // Adds `times` to the counts of neighbours.
  void CountPairs(const std::vector<int32_t>& tokens, int64_t times) {
    for (size_t i = 0; i + 1 < tokens.size(); ++i) uses_[{tokens[i], tokens[i + 1]}].count += times;
  }

  // Word `w` has the pair of its tokens i and i + 1.
  Merge NoteWord(size_t w, size_t i) {
    const std::vector<int32_t>& tokens = words_[w].tokens;
    const Merge pair = {tokens[i], tokens[i + 1]};
    std::vector<size_t>& words = uses_[pair].words;
    if (words.empty() || words.back() != w) words.push_back(w);
    return pair;
  }

  void JoinEverywhere(const Merge& pair, int32_t joined) {
    const std::vector<size_t> touched = std::move(uses_[pair].words);
    std::vector<Merge> born;
    for (const size_t w : touched) {
      std::vector<int32_t>& tokens = words_[w].tokens;
      CountPairs(tokens, -words_[w].count);
      Join(pair, joined, &tokens);
      CountPairs(tokens, words_[w].count);
      for (size_t i = 0; i + 1 < tokens.size(); ++i) {
        if (tokens[i] == joined || tokens[i + 1] == joined) born.push_back(NoteWord(w, i));
      }
    }
    uses_.erase(pair);
    std::sort(born.begin(), born.end());
    born.erase(std::unique(born.begin(), born.end()), born.end());
    for (const Merge& b : born) candidates_.push({uses_[b].count, b});
  }

  std::vector<Word> words_;
  absl::flat_hash_map<Merge, Use> uses_;
  std::priority_queue<Candidate> candidates_;
};

class BytePairTokenizer final : public Tokenizer {
 public:
  BytePairTokenizer(std::vector<Merge> merges, std::vector<std::string> bytes)
      : merges_(std::move(merges)), bytes_(std::move(bytes)) {
    for (size_t i = 0; i < merges_.size(); ++i) {
      ranks_.emplace(merges_[i], static_cast<int32_t>(i));
    }
  }

  int64_t vocab() const override { return static_cast<int64_t>(bytes_.size()); }

  StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    std::vector<int32_t> ids;
    absl::flat_hash_map<absl::string_view, std::vector<int32_t>> known;
    for (size_t at = 0; at < text.size();) {
      const absl::string_view word = text.substr(at, WordEnd(text, at) - at);
      const auto [it, added] = known.try_emplace(word);
      if (added) it->second = EncodeWord(word);
      ids.insert(ids.end(), it->second.begin(), it->second.end());
      at += word.size();
    }
    return ids;
  }

  std::string Decode(absl::Span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 0 && id < vocab()) text += bytes_[static_cast<size_t>(id)];
    }
    return text;
  }

  TokenTable table() const override {
    TokenTable table{"merges", {}};
    for (const Merge& m : merges_) table.numbers.insert(table.numbers.end(), {m.first, m.second});
    return table;
  }

 private:
  // Merges in the order in which they were learned.
  std::vector<int32_t> EncodeWord(absl::string_view word) const {
    std::vector<int32_t> tokens = BytesOf(word);
    while (true) {
      int32_t first = static_cast<int32_t>(merges_.size());
      for (size_t i = 0; i + 1 < tokens.size(); ++i) {
        const auto it = ranks_.find({tokens[i], tokens[i + 1]});
        if (it != ranks_.end()) first = std::min(first, it->second);
      }
      if (first == static_cast<int32_t>(merges_.size())) return tokens;
      Join(merges_[static_cast<size_t>(first)], static_cast<int32_t>(kByteTokens) + first, &tokens);
    }
  }

  std::vector<Merge> merges_;
  std::vector<std::string> bytes_;  // by token
  absl::flat_hash_map<Merge, int32_t> ranks_;
};

}  // namespace

std::vector<Merge> LearnMerges(absl::string_view text, int64_t vocab) {
  return Learner(text).Learn(vocab);
}

StatusOr<std::unique_ptr<Tokenizer>> BpeTokenizer(std::vector<Merge> merges) {
  std::vector<std::string> bytes;
  for (int i = 0; i < kByteTokens; ++i) bytes.emplace_back(1, static_cast<char>(i));
  for (const Merge& m : merges) {
    const auto known = static_cast<int32_t>(bytes.size());
    if (m.first < 0 || m.first >= known || m.second < 0 || m.second >= known) {
      return InvalidArgument("token ", known, " joins ", m.first, " and ", m.second,
                             ", wants two that come before it");
    }
    const std::string& left = bytes[static_cast<size_t>(m.first)];
    const std::string& right = bytes[static_cast<size_t>(m.second)];
    if (left.size() + right.size() > kMostWordBytes) {
      return InvalidArgument("token ", known, " is longer than ", kMostWordBytes, " bytes");
    }
    bytes.push_back(left + right);
  }
  return std::make_unique<BytePairTokenizer>(std::move(merges), std::move(bytes));
}

}  // namespace weft::data
