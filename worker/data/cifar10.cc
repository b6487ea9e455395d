// CIFAR-10's binary version (cs.toronto.edu/~kriz/cifar.html): records of one byte of label and
// 3072 of image, red, green and blue planes row by row.
#include <sys/stat.h>

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

constexpr int64_t kSide = 32, kChannels = 3, kClasses = 10;
constexpr int64_t kImageBytes = kChannels * kSide * kSide, kRecordBytes = 1 + kImageBytes;
constexpr char kTrainFiles[] = "data_batch_*.bin", kHeldOutFile[] = "test_batch.bin";

// Records in files one after the other.
class RecordList {
 public:
  static StatusOr<RecordList> Open(const std::string& pattern, Sha256* sha, int64_t* bytes) {
    RecordList list;
    ASSIGN_OR_RETURN(list.files_, MapFiles(pattern));
    for (const MappedFile& file : list.files_) {
      if (file.bytes() % kRecordBytes != 0) {
        return InvalidArgument("'", file.path(), "' has ", file.bytes(), " bytes, no multiple of ",
                               kRecordBytes, "; name files of CIFAR-10's binary version, unpacked");
      }
      const int64_t records = file.bytes() / kRecordBytes;
      for (int64_t r = 0; r < records; ++r) {
        const int label = file.data()[r * kRecordBytes];
        if (label < kClasses) continue;
        return InvalidArgument("'", file.path(), "': the label of record ", r, " is ", label,
                               ", wants 0 to ", kClasses - 1);
      }
      list.ends_.push_back(list.records() + records);
      sha->Update(file.data(), static_cast<size_t>(file.bytes()));
      *bytes += file.bytes();
    }
    return list;
  }

  int64_t records() const { return ends_.empty() ? 0 : ends_.back(); }

  void Read(int64_t record, absl::Span<void* const> into) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), record);
    const auto index = static_cast<size_t>(end - ends_.begin());
    const int64_t within = record - (index == 0 ? 0 : ends_[index - 1]);
    const uint8_t* const bytes = files_[index].data() + within * kRecordBytes;
    std::memcpy(into[0], bytes + 1, static_cast<size_t>(kImageBytes));
    *static_cast<int32_t*>(into[1]) = bytes[0];
  }

 private:
  std::vector<MappedFile> files_;
  std::vector<int64_t> ends_;  // by file: the number of its last record, plus 1
};

class Cifar10Dataset final : public Dataset {
 public:
  Cifar10Dataset(RecordList train, RecordList held_out, uint64_t seed, std::string digest)
      : train_(std::move(train)),
        held_out_(std::move(held_out)),
        seed_(seed),
        digest_(std::move(digest)) {
    slots_ = {{"images", {DType::kU8, {kChannels, kSide, kSide}}}, {"targets", {DType::kI32, {}}}};
  }

  const std::vector<Slot>& slots() const override { return slots_; }
  void TrainSample(int64_t number, absl::Span<void* const> into) const override {
    train_.Read(RecordOf(seed_, train_.records(), number), into);
  }
  int64_t eval_samples() const override { return held_out_.records(); }
  void EvalSample(int64_t number, absl::Span<void* const> into) const override {
    held_out_.Read(number, into);
  }
  std::string digest() const override { return digest_; }

 private:
  RecordList train_, held_out_;
  uint64_t seed_;
  std::string digest_;
  std::vector<Slot> slots_;
};

bool IsFolder(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const Cifar10Options& options) {
  const bool folder = IsFolder(options.path);
  const std::string path = folder ? absl::StrCat(options.path, "/", kTrainFiles) : options.path;
  const std::string validation = options.validation.empty() && folder
                                     ? absl::StrCat(options.path, "/", kHeldOutFile)
                                     : options.validation;
  Sha256 sha;
  int64_t bytes = 0;
  StatusOr<RecordList> train = RecordList::Open(path, &sha, &bytes);
  if (!train.ok()) return Annotate(train.status(), "data.cifar10.path");
  RecordList held_out;
  if (!validation.empty()) {
    StatusOr<RecordList> list = RecordList::Open(validation, &sha, &bytes);
    if (!list.ok()) return Annotate(list.status(), "data.cifar10.validation");
    held_out = *std::move(list);
  }
  return std::make_unique<Cifar10Dataset>(*std::move(train), std::move(held_out), options.seed,
                                          absl::StrCat(bytes, ":", sha.FinishHex()));
}

}  // namespace weft::data
