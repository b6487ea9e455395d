#include <memory>
#include <utility>

#include "fabric/base/philox.h"
#include "worker/data/dataset.h"

namespace weft::data {
namespace {

constexpr int32_t kBos = 0, kSep = 1, kEos = 2, kPad = 3, kFirstSymbol = 4;
constexpr uint64_t kTrainStream = 1, kEvalStream = 2;

class ReverseDataset final : public Dataset {
 public:
  explicit ReverseDataset(const ReverseOptions& options) : options_(options) {
    const TensorMeta row{DType::kI32, {options.context}};
    slots_ = {{"tokens", row}, {"targets", row}};
  }

  const std::vector<Slot>& slots() const override { return slots_; }
  void TrainSample(int64_t number, absl::Span<void* const> into) const override {
    Make(kTrainStream, number, into);
  }
  int64_t eval_samples() const override { return options_.eval_samples; }
  void EvalSample(int64_t number, absl::Span<void* const> into) const override {
    Make(kEvalStream, number, into);
  }
  std::string digest() const override { return "0:synthetic"; }

 private:
  // Draw `index` of a sample: 0 is its length, 1.. its symbols.
  uint32_t Draw(uint64_t stream, int64_t number, int64_t index) const {
    const PhiloxBlock block = Philox(options_.seed, (stream << 56) | static_cast<uint64_t>(number),
                                     static_cast<uint64_t>(index / 4));
    return block.word[index % 4];
  }
  // Scales a draw to [0, n) by multiplication, as exact as 32 bits allow.
  static int64_t Below(uint32_t draw, int64_t n) {
    return static_cast<int64_t>((uint64_t{draw} * static_cast<uint64_t>(n)) >> 32);
  }

  void Make(uint64_t stream, int64_t number, absl::Span<void* const> into) const {
    int32_t* tokens = static_cast<int32_t*>(into[0]);
    int32_t* targets = static_cast<int32_t*>(into[1]);
    const int64_t n = 1 + Below(Draw(stream, number, 0), options_.max_length);
    const int64_t end = 2 * n + 2;  // position of EOS
    for (int64_t p = 0; p < options_.context; ++p) tokens[p] = kPad;
    tokens[0] = kBos;
    tokens[n + 1] = kSep;
    tokens[end] = kEos;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t symbol = Below(Draw(stream, number, 1 + i), options_.symbols);
      tokens[1 + i] = tokens[2 * n + 1 - i] = kFirstSymbol + static_cast<int32_t>(symbol);
    }
    for (int64_t p = 0; p < options_.context; ++p) {
      targets[p] = p > n && p < end ? tokens[p + 1] : kIgnored;
    }
  }

  ReverseOptions options_;
  std::vector<Slot> slots_;
};

}  // namespace

StatusOr<std::unique_ptr<Dataset>> OpenReverse(const ReverseOptions& options) {
  if (options.symbols < 1 || options.max_length < 1 || options.eval_samples < 0) {
    return InvalidArgument("data.reverse: symbols ", options.symbols, " and max_length ",
                           options.max_length, " must be at least 1, eval_samples ",
                           options.eval_samples, " at least 0");
  }
  if (2 * options.max_length + 3 > options.context) {
    return InvalidArgument("data.reverse.max_length: ", options.max_length,
                           " symbols need a context of ", 2 * options.max_length + 3,
                           ", the model has ", options.context);
  }
  return std::make_unique<ReverseDataset>(options);
}

}  // namespace weft::data
