// Files as read-only memory that all processes of a node share. Immutable; safe from any thread. A
// file that is cut while it is mapped ends the process that reads beyond its new end.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fabric/base/status.h"

namespace weft::data {

class MappedFile {
 public:
  // NotFound when it is absent; InvalidArgument when it is no plain file or empty.
  static StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(other.bytes_) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  const uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  MappedFile(std::string path, const uint8_t* data, int64_t bytes)
      : path_(std::move(path)), data_(data), bytes_(bytes) {}
  std::string path_;
  const uint8_t* data_;
  int64_t bytes_;
};

// The files that `pattern` names, as a shell expands * ? [] and {a,b}, sorted by name. NotFound
// when there is none.
StatusOr<std::vector<std::string>> FindFiles(const std::string& pattern);

// All of them, mapped.
StatusOr<std::vector<MappedFile>> MapFiles(const std::string& pattern);

}  // namespace weft::data
