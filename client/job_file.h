// A job file as people write it -> a JobSpec that may travel: paths are absolute, the vocabulary of
// a character model is known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "fabric/base/status.h"
#include "fabric/wire/config_file.h"
#include "proto/job.pb.h"

namespace weft {

struct JobFile {
  v1::JobSpec spec;
  wire::SourceMap positions;
  std::vector<std::string> settings;

  // Where a field's value was written: "job.yaml:6:10: ", "--set train.steps=0: ", or "job.yaml: ".
  std::string Where(absl::string_view field_path) const;
  // `status` of a coordinator, whose message has problems as lines that begin with a field's path,
  // with the place before each.
  Status Locate(const Status& status) const;
};

// Reads `path`, applies `settings` ("train.steps=60") in order. Relative paths in the file are
// meant from its folder, those in settings from the current one. NotFound: the job file or its data
// is not there; InvalidArgument: what is wrong where.
StatusOr<JobFile> LoadJobFile(const std::string& path, const std::vector<std::string>& settings);

// Distinct code points of a UTF-8 text. InvalidArgument names the first byte that is not UTF-8.
StatusOr<int64_t> CountCharacters(absl::string_view text);

}  // namespace weft
