#include "fabric/ckpt/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "nlohmann/json.hpp"

namespace weft::ckpt {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "the format's byte order is the machine's");

constexpr size_t kLengthBytes = 8;
constexpr size_t kHeaderLimit = 100u << 20;
constexpr size_t kDataAlign = 64;
constexpr char kMetadataKey[] = "__metadata__";

DType FromSafetensorsName(const std::string& name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype != DType::kInvalid && name == row.safetensors) return row.dtype;
  }
  return DType::kInvalid;
}

// One header entry -> meta and [begin, end) within the data.
Status ParseEntry(const std::string& name, const json& item, TensorMeta* meta, uint64_t* begin,
                  uint64_t* end) {
  if (!item.is_object() || !item.contains("dtype") || !item.contains("shape") ||
      !item.contains("data_offsets")) {
    return DataLoss("tensor '", name, "' lacks dtype, shape or data_offsets");
  }
  const json& dtype = item["dtype"];
  const json& shape = item["shape"];
  const json& offsets = item["data_offsets"];
  if (!dtype.is_string()) return DataLoss("tensor '", name, "': dtype is no string");
  meta->dtype = FromSafetensorsName(dtype.get<std::string>());
  if (meta->dtype == DType::kInvalid) {
    return InvalidArgument("tensor '", name, "' has dtype ", dtype.get<std::string>(),
                           ", which is not supported");
  }
  if (!shape.is_array() || shape.size() > kMaxRank)
    return DataLoss("tensor '", name, "': bad shape");
  std::vector<int64_t> dims;
  for (const json& d : shape) {
    if (!d.is_number_unsigned() || d.get<uint64_t>() > INT64_MAX) {
      return DataLoss("tensor '", name, "': bad dimension");
    }
    dims.push_back(d.get<int64_t>());
  }
  RETURN_IF_ERROR(
      Annotate(CheckShape(meta->dtype, dims.data(), static_cast<int>(dims.size())), name));
  meta->shape = Shape(dims.begin(), dims.end());
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return DataLoss("tensor '", name, "': bad data_offsets");
  }
  *begin = offsets[0].get<uint64_t>();
  *end = offsets[1].get<uint64_t>();
  return absl::OkStatus();
}

}  // namespace

Status WriteSafetensors(absl::Span<const NamedTensor> tensors, FileWriter* out) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  int64_t offset = 0;
  for (const NamedTensor& t : tensors) {
    if (header.contains(t.name) || t.name == kMetadataKey) {
      return InvalidArgument("tensor name '", t.name, "' is not usable twice or reserved");
    }
    header[t.name] = {{"dtype", Row(t.meta.dtype).safetensors},
                      {"shape", std::vector<int64_t>(t.meta.shape.begin(), t.meta.shape.end())},
                      {"data_offsets", {offset, offset + t.meta.bytes()}}};
    offset += t.meta.bytes();
  }
  std::string text = header.dump();
  // The format lets the header end in spaces.
  text.resize(
      (kLengthBytes + text.size() + kDataAlign - 1) / kDataAlign * kDataAlign - kLengthBytes, ' ');
  const uint64_t length = text.size();
  RETURN_IF_ERROR(out->Append(&length, sizeof(length)));
  RETURN_IF_ERROR(out->Append(text.data(), text.size()));
  for (const NamedTensor& t : tensors) {
    RETURN_IF_ERROR(out->Append(t.data, static_cast<size_t>(t.meta.bytes())));
  }
  return absl::OkStatus();
}

StatusOr<Safetensors> Safetensors::Parse(std::string bytes) {
  uint64_t length = 0;
  if (bytes.size() < kLengthBytes)
    return DataLoss("safetensors file has only ", bytes.size(), " bytes");
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > kHeaderLimit || length > bytes.size() - kLengthBytes) {
    return DataLoss("safetensors header claims ", length, " bytes; the file has ", bytes.size());
  }
  const char* text = bytes.data() + kLengthBytes;
  const json header = json::parse(text, text + length, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return DataLoss("safetensors header is no JSON object");
  const size_t data_start = kLengthBytes + length;
  const uint64_t data_bytes = bytes.size() - data_start;

  Safetensors result;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, item] : header.items()) {
    if (name == kMetadataKey) continue;
    Entry entry;
    uint64_t begin = 0, end = 0;
    RETURN_IF_ERROR(ParseEntry(name, item, &entry.meta, &begin, &end));
    if (begin > end || end > data_bytes ||
        end - begin != static_cast<uint64_t>(entry.meta.bytes())) {
      return DataLoss("tensor '", name, "' ", ToString(entry.meta), " claims bytes ", begin, " to ",
                      end, " of ", data_bytes);
    }
    entry.offset = data_start + begin;
    ranges.push_back({begin, end});
    result.entries_[name] = entry;
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != at) return DataLoss("safetensors data has a hole or overlap at byte ", at);
    at = end;
  }
  if (at != data_bytes)
    return DataLoss("safetensors data has ", data_bytes - at, " bytes that belong to no tensor");
  result.bytes_ = std::move(bytes);
  return result;
}

StatusOr<Safetensors> Safetensors::Load(const std::string& path) {
  ASSIGN_OR_RETURN(std::string bytes, ReadFile(path));
  StatusOr<Safetensors> parsed = Parse(std::move(bytes));
  if (!parsed.ok()) return Annotate(parsed.status(), path);
  return parsed;
}

const Safetensors::Entry* Safetensors::Find(const std::string& name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

}  // namespace weft::ckpt
