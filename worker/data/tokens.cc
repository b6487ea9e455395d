// llm.c's token files (karpathy/llm.c, llmc/dataloader.h and dev/data/data_common.py): 256 int32 of
// header, then uint16 ids, all little-endian.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "fabric/base/hash.h"
#include "worker/data/dataset.h"
#include "worker/data/mapped_file.h"
#include "worker/data/order.h"

namespace weft::data {
namespace {

constexpr int64_t kHeaderBytes = 1024, kIdBytes = 2;
constexpr int32_t kMagic = 20240520, kVersion = 1;
// What is read of each file before training: so many blocks, evenly spread.
constexpr int64_t kProbes = 64, kProbeIds = 2048;

int32_t HeaderWord(const MappedFile& file, int index) {
  int32_t word = 0;
  std::memcpy(&word, file.data() + index * static_cast<int64_t>(sizeof(word)), sizeof(word));
  return word;
}

int32_t IdAt(const MappedFile& file, int64_t index) {
  uint16_t id = 0;
  std::memcpy(&id, file.data() + kHeaderBytes + index * kIdBytes, kIdBytes);
  return id;
}

int64_t TokensIn(const MappedFile& file) { return (file.bytes() - kHeaderBytes) / kIdBytes; }

Status CheckHeader(const MappedFile& file) {
  if (file.bytes() < kHeaderBytes) {
    return InvalidArgument("'", file.path(), "' has ", file.bytes(), " bytes, its header alone ",
                           kHeaderBytes, "; name files of 16-bit tokens as llm.c writes them");
  }
  if (HeaderWord(file, 0) != kMagic) {
    return InvalidArgument("'", file.path(), "' begins with the number ", HeaderWord(file, 0),
                           ", token files with ", kMagic,
                           "; name files of 16-bit tokens as llm.c writes them");
  }
  if (HeaderWord(file, 1) != kVersion) {
    return InvalidArgument("'", file.path(), "' has version ", HeaderWord(file, 1), ", version ",
                           kVersion, " is read");
  }
  const int64_t tokens = HeaderWord(file, 2);
  if (tokens < 0 || file.bytes() != kHeaderBytes + tokens * kIdBytes) {
    return InvalidArgument("'", file.path(), "' has ", file.bytes(),
                           " bytes, by its header it holds ", tokens, " tokens, which take ",
                           kHeaderBytes + tokens * kIdBytes, "; copy it again");
  }
  return absl::OkStatus();
}

// Windows of `context` ids and the one after, in files one after the other.
class WindowList {
 public:
  static StatusOr<WindowList> Open(const std::string& pattern, const TokenOptions& options,
                                   Sha256* sha, int64_t* bytes) {
    WindowList list;
    list.context_ = options.context;
    ASSIGN_OR_RETURN(list.files_, MapFiles(pattern));
    for (const MappedFile& file : list.files_) {
      RETURN_IF_ERROR(CheckHeader(file));
      const int64_t tokens = TokensIn(file);
      if (tokens <= options.context) {
        return InvalidArgument("'", file.path(), "' has ", tokens,
                               " tokens, fewer than one window of ", options.context + 1,
                               "; use larger files or a smaller context");
      }
      list.ends_.push_back(list.windows() + (tokens - 1) / options.context);
      RETURN_IF_ERROR(Probe(file, options.vocab, sha));
      *bytes += file.bytes();
    }
    return list;
  }

  int64_t windows() const { return ends_.empty() ? 0 : ends_.back(); }

  void Read(int64_t window, absl::Span<void* const> into) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), window);
    const auto index = static_cast<size_t>(end - ends_.begin());
    const MappedFile& file = files_[index];
    const int64_t first = (window - (index == 0 ? 0 : ends_[index - 1])) * context_;
    int32_t* const tokens = static_cast<int32_t*>(into[0]);
    int32_t* const targets = static_cast<int32_t*>(into[1]);
    for (int64_t i = 0; i < context_; ++i) {
      tokens[i] = IdAt(file, first + i);
      targets[i] = IdAt(file, first + i + 1);
    }
  }

 private:
  // Hashes the header and blocks of ids, and checks those: all of a large corpus would take as long
  // to read as many steps to train.
  static Status Probe(const MappedFile& file, int64_t vocab, Sha256* sha) {
    sha->Update(file.data(), kHeaderBytes);
    const int64_t tokens = TokensIn(file), blocks = (tokens + kProbeIds - 1) / kProbeIds;
    const int64_t probes = std::min(blocks, kProbes);
    for (int64_t p = 0; p < probes; ++p) {
      const int64_t begin = (probes == 1 ? 0 : p * (blocks - 1) / (probes - 1)) * kProbeIds;
      const int64_t end = std::min(tokens, begin + kProbeIds);
      sha->Update(file.data() + kHeaderBytes + begin * kIdBytes,
                  static_cast<size_t>((end - begin) * kIdBytes));
      for (int64_t i = begin; i < end; ++i) {
        if (IdAt(file, i) < vocab) continue;
        return InvalidArgument("'", file.path(), "': token ", i, " is ", IdAt(file, i),
                               ", model.gpt.vocab is ", vocab);
      }
    }
    return absl::OkStatus();
  }

  int64_t context_ = 0;
  std::vector<MappedFile> files_;
  std::vector<int64_t> ends_;  // by file: the number of its last window, plus 1
};

class TokenDataset final : public Dataset {
 public:
  TokenDataset(WindowList train, WindowList held_out, int64_t eval_samples, const TokenOptions& o,
               std::string digest)
      : train_(std::move(train)),
        held_out_(std::move(held_out)),
        eval_samples_(eval_samples),
        seed_(o.seed),
        digest_(std::move(digest)) {
    const TensorMeta row{DType::kI32, {o.context}};
    slots_ = {{"tokens", row}, {"targets", row}};
  }

  const std::vector<Slot>& slots() const override { return slots_; }
  void TrainSample(int64_t number, absl::Span<void* const> into) const override {
    train_.Read(RecordOf(seed_, train_.windows(), number), into);
  }
  int64_t eval_samples() const override { return eval_samples_; }
  void EvalSample(int64_t number, absl::Span<void* const> into) const override {
    held_out_.Read(number, into);
  }
  std::string digest() const override { return digest_; }

 private:
  WindowList train_, held_out_;
  int64_t eval_samples_;
  uint64_t seed_;
  std::string digest_;
  std::vector<Slot> slots_;
};

}  // namespace

StatusOr<std::unique_ptr<Dataset>> OpenTokens(const TokenOptions& options) {
  if (options.context < 1) return InvalidArgument("data.tokens: the model has no context");
  Sha256 sha;
  int64_t bytes = 0;
  StatusOr<WindowList> train = WindowList::Open(options.path, options, &sha, &bytes);
  if (!train.ok()) return Annotate(train.status(), "data.tokens.path");
  WindowList held_out;
  if (!options.validation.empty()) {
    StatusOr<WindowList> list = WindowList::Open(options.validation, options, &sha, &bytes);
    if (!list.ok()) return Annotate(list.status(), "data.tokens.validation");
    held_out = *std::move(list);
  }
  const int64_t eval_samples = std::min(options.eval_samples, held_out.windows());
  return std::make_unique<TokenDataset>(*std::move(train), std::move(held_out), eval_samples,
                                        options, absl::StrCat(bytes, ":", sha.FinishHex()));
}

}  // namespace weft::data
