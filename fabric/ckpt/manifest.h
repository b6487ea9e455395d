// Checkpoints on disk: <root>/step-<12 digits>/ with safetensors files and a manifest.json that
// names each file with size and CRC32C. The manifest is written last and carries its own checksum,
// so a folder without a valid one is no checkpoint. Loading needs nothing of the run that wrote it:
// any number of ranks may.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fabric/base/status.h"
#include "fabric/ckpt/safetensors.h"

namespace weft::ckpt {

struct ManifestFile {
  std::string name;
  int64_t bytes = 0;
  uint32_t crc32c = 0;
};

struct Manifest {
  int64_t step = 0;           // confirmed steps
  std::string job;            // its name
  std::string spec_json;      // the job spec, as JSON
  std::string numerics_json;  // the plan's numerics section, as JSON
  std::string state_digest;
  std::vector<ManifestFile> files;
};

// One file of a checkpoint to be written.
struct CheckpointFile {
  std::string name;  // "model.safetensors"
  std::vector<NamedTensor> tensors;
};

struct CheckpointInfo {
  std::string path;  // of its folder
  Manifest manifest;
};

// Writes <root>/step-<n> (temporary folder, fsync, rename, manifest last) and returns its path. An
// existing valid checkpoint of the same step is kept as it is. `manifest.files` is filled in.
StatusOr<std::string> WriteCheckpoint(const std::string& root, Manifest manifest,
                                      const std::vector<CheckpointFile>& files);

// Reads the manifest and checks every file's size and CRC32C. DataLoss says which file and why.
StatusOr<CheckpointInfo> VerifyCheckpoint(const std::string& path);

// The newest checkpoint below `root` that verifies; NotFound when there is none. Those that do not
// verify are named in `skipped` (may be null). `path` may also be one checkpoint's own folder.
StatusOr<CheckpointInfo> NewestVerified(const std::string& path, std::vector<std::string>* skipped);

// Paths of all checkpoint folders below `root`, newest first, verified or not.
StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& root);

// Deletes all but the `keep` (>= 1) newest checkpoints that have a manifest, and what crashed
// writers left behind. The newest verified one is never deleted.
Status PruneCheckpoints(const std::string& root, int keep);

}  // namespace weft::ckpt
