// StateDir: the coordinator's folder on disk: database, token, endpoint file, and the lock that
// keeps a second coordinator out of it. The lock is held while the object lives.
#pragma once

#include <memory>
#include <string>

#include "fabric/base/status.h"

namespace weft {

class StateDir {
 public:
  // Creates the folder (0700) when it is missing. FailedPrecondition when another coordinator has
  // it.
  static StatusOr<std::unique_ptr<StateDir>> Open(const std::string& path);
  ~StateDir();
  StateDir(const StateDir&) = delete;
  StateDir& operator=(const StateDir&) = delete;

  std::string DatabasePath() const { return path_ + "/weft.db"; }
  // The token in the folder, made at the first call. Codes as wire::ReadOrCreateTokenFile.
  StatusOr<std::string> LoadToken();
  // Tells where this process listens. Readers see the old file or the new one.
  Status WriteEndpoint(const std::string& address);
  // So that no one dials a coordinator that is gone.
  void RemoveEndpoint();

 private:
  StateDir(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  const std::string path_;
  const int lock_;
};

}  // namespace weft
