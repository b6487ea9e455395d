#include "worker/data/mapped_file.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"

namespace weft::data {

StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(absl::StrCat("cannot open '", path, "'"), errno);
  const absl::Cleanup closer = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(absl::StrCat("cannot stat '", path, "'"), errno);
  if (!S_ISREG(info.st_mode)) return InvalidArgument("'", path, "' is not a plain file");
  if (info.st_size == 0) return InvalidArgument("'", path, "' is empty");
  void* const data = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return ErrnoStatus(absl::StrCat("cannot map '", path, "'"), errno);
  return MappedFile(path, static_cast<const uint8_t*>(data), info.st_size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(bytes_));
}

StatusOr<std::vector<std::string>> FindFiles(const std::string& pattern) {
  glob_t found = {};
  const absl::Cleanup freer = [&found] { globfree(&found); };
  const int result = glob(pattern.c_str(), GLOB_BRACE | GLOB_NOSORT, nullptr, &found);
  if (result == GLOB_NOMATCH) return NotFound("no file '", pattern, "'");
  if (result != 0) return ErrnoStatus(absl::StrCat("cannot list '", pattern, "'"), errno);
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  // By bytes: glob's own order is the locale's.
  std::sort(files.begin(), files.end());
  return files;
}

StatusOr<std::vector<MappedFile>> MapFiles(const std::string& pattern) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, FindFiles(pattern));
  std::vector<MappedFile> files;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(name));
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace weft::data
