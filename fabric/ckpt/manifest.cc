#include "fabric/ckpt/manifest.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "fabric/base/hash.h"

namespace weft::ckpt {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr char kManifestName[] = "manifest.json";
constexpr char kStepPrefix[] = "step-";
constexpr char kTemporaryPrefix[] = ".writing-";
constexpr int64_t kManifestLimit = 16 << 20;

std::string FolderName(int64_t step) { return absl::StrFormat("%s%012d", kStepPrefix, step); }

std::string Checksum(const json& body) {
  const std::string text = body.dump();
  return absl::StrFormat("%08x", Crc32c(0, text.data(), text.size()));
}

std::string ToJson(const Manifest& m) {
  json files = json::array();
  for (const ManifestFile& f : m.files) {
    files.push_back({{"name", f.name}, {"bytes", f.bytes}, {"crc32c", f.crc32c}});
  }
  json body = {{"format", kFormat},
               {"step", m.step},
               {"job", m.job},
               {"spec", m.spec_json},
               {"numerics", m.numerics_json},
               {"state_digest", m.state_digest},
               {"files", files}};
  body["checksum"] = Checksum(body);
  return body.dump(1) + "\n";
}

// Throws json exceptions on missing or mistyped fields; the caller turns them into DataLoss.
Manifest FromJson(const json& body) {
  Manifest m;
  m.step = body.at("step").get<int64_t>();
  m.job = body.at("job").get<std::string>();
  m.spec_json = body.at("spec").get<std::string>();
  m.numerics_json = body.at("numerics").get<std::string>();
  m.state_digest = body.at("state_digest").get<std::string>();
  for (const json& f : body.at("files")) {
    m.files.push_back({f.at("name").get<std::string>(), f.at("bytes").get<int64_t>(),
                       f.at("crc32c").get<uint32_t>()});
  }
  return m;
}

StatusOr<Manifest> ParseManifest(const std::string& text) {
  json body = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object() || !body.contains("checksum") || !body["checksum"].is_string()) {
    return DataLoss("not a manifest");
  }
  const std::string checksum = body["checksum"].get<std::string>();
  body.erase("checksum");
  if (checksum != Checksum(body)) return DataLoss("the manifest's checksum does not match");
  if (body.value("format", 0) != kFormat) {
    return FailedPrecondition("the manifest has format ", body.value("format", 0),
                              "; this build reads ", kFormat);
  }
  try {
    return FromJson(body);
  } catch (const json::exception& e) {
    return DataLoss("bad manifest: ", e.what());
  }
}

bool IsPlainName(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

StatusOr<ManifestFile> WriteFile(const std::string& folder, const CheckpointFile& file) {
  ASSIGN_OR_RETURN(FileWriter out, FileWriter::Create(absl::StrCat(folder, "/", file.name)));
  RETURN_IF_ERROR(WriteSafetensors(file.tensors, &out));
  const ManifestFile row = {file.name, out.bytes(), out.crc32c()};
  RETURN_IF_ERROR(out.Close());
  return row;
}

bool HasManifest(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(absl::StrCat(path, "/", kManifestName), error);
}

}  // namespace

StatusOr<std::string> WriteCheckpoint(const std::string& root, Manifest manifest,
                                      const std::vector<CheckpointFile>& files) {
  const std::string path = absl::StrCat(root, "/", FolderName(manifest.step));
  if (VerifyCheckpoint(path).ok()) return path;
  RETURN_IF_ERROR(MakeFolders(root));
  RETURN_IF_ERROR(RemoveTree(path));
  const std::string temporary =
      absl::StrCat(root, "/", kTemporaryPrefix, manifest.step, "-", getpid());
  RETURN_IF_ERROR(RemoveTree(temporary));
  RETURN_IF_ERROR(MakeFolders(temporary));
  Status status;
  manifest.files.clear();
  for (const CheckpointFile& file : files) {
    StatusOr<ManifestFile> row = WriteFile(temporary, file);
    if (!row.ok()) {
      status = row.status();
      break;
    }
    manifest.files.push_back(*row);
  }
  if (status.ok()) status = SyncFolder(temporary);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(absl::StrCat("cannot rename '", temporary, "'"), errno);
  }
  if (!status.ok()) {
    RemoveTree(temporary).IgnoreError();
    return status;
  }
  RETURN_IF_ERROR(SyncFolder(root));
  RETURN_IF_ERROR(WriteFileAtomically(absl::StrCat(path, "/", kManifestName), ToJson(manifest)));
  return path;
}

StatusOr<CheckpointInfo> VerifyCheckpoint(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadFile(absl::StrCat(path, "/", kManifestName), kManifestLimit));
  StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  for (const ManifestFile& file : manifest->files) {
    if (!IsPlainName(file.name)) return DataLoss(path, ": bad file name in the manifest");
    const std::string file_path = absl::StrCat(path, "/", file.name);
    ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file_path));
    if (static_cast<int64_t>(bytes.size()) != file.bytes) {
      return DataLoss(file_path, " has ", bytes.size(), " bytes, the manifest says ", file.bytes);
    }
    if (Crc32c(0, bytes.data(), bytes.size()) != file.crc32c) {
      return DataLoss(file_path, ": the checksum does not match the manifest's");
    }
  }
  return CheckpointInfo{path, *std::move(manifest)};
}

StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& root) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(root));
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    if (absl::StartsWith(name, kStepPrefix)) paths.push_back(absl::StrCat(root, "/", name));
  }
  // Twelve digits sort as numbers.
  std::reverse(paths.begin(), paths.end());
  return paths;
}

StatusOr<CheckpointInfo> NewestVerified(const std::string& path,
                                        std::vector<std::string>* skipped) {
  if (HasManifest(path)) return VerifyCheckpoint(path);
  StatusOr<std::vector<std::string>> paths = ListCheckpoints(path);
  if (!paths.ok() && !absl::IsNotFound(paths.status())) return paths.status();
  if (paths.ok()) {
    for (const std::string& candidate : *paths) {
      StatusOr<CheckpointInfo> info = VerifyCheckpoint(candidate);
      if (info.ok()) return info;
      if (skipped != nullptr)
        skipped->push_back(absl::StrCat(candidate, ": ", info.status().message()));
    }
  }
  return NotFound("no verified checkpoint in '", path, "'");
}

Status PruneCheckpoints(const std::string& root, int keep) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListCheckpoints(root));
  int kept = 0;
  bool verified = false;
  for (const std::string& path : paths) {
    if (kept < keep || !verified) {
      const bool good = VerifyCheckpoint(path).ok();
      verified |= good;
      if (good) ++kept;
      // One that does not verify is left alone until newer good ones make it superfluous: it may be
      // all that a person has.
      continue;
    }
    RETURN_IF_ERROR(RemoveTree(path));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(root));
  for (const std::string& name : names) {
    if (absl::StartsWith(name, kTemporaryPrefix))
      RETURN_IF_ERROR(RemoveTree(absl::StrCat(root, "/", name)));
  }
  return SyncFolder(root);
}

}  // namespace weft::ckpt
