// Groups of every backend with ranks as threads of the test.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabric/base/status.h"
#include "fabric/comm/communicator.h"

namespace weft::comm {

using Group = std::vector<std::unique_ptr<Communicator>>;

// Shared memory without a name, of SharedMemoryBytes(size). The caller closes it.
int MakeSharedMemory(int32_t size);

// "in_process", "shm", "tcp", and each with "_checked" behind it.
StatusOr<Group> MakeGroup(const std::string& backend, int32_t size);

// Runs `body` for each rank on a thread of its own and returns what each returned, by rank.
std::vector<Status> OnRanks(Group& group, const std::function<Status(Communicator&)>& body);

// Long enough for any sanitizer; a test that needs it hangs otherwise.
Deadline TestDeadline();

}  // namespace weft::comm
