#include <memory>
#include <string>
#include <vector>

#include "fabric/base/check.h"
#include "fabric/comm/channel_communicator.h"
#include "fabric/comm/communicator.h"
#include "fabric/comm/memory_channel.h"

namespace weft::comm {

std::vector<std::unique_ptr<Communicator>> MakeInProcessGroup(int32_t size) {
  WEFT_CHECK(size > 0);
  StatusOr<std::shared_ptr<Mapping>> mapping = Mapping::Open(-1, SharedMemoryBytes(size));
  WEFT_CHECK(mapping.ok());
  std::vector<std::unique_ptr<Communicator>> group;
  for (int32_t rank = 0; rank < size; ++rank) {
    MemoryGroup member{*mapping, rank, size, std::string(32, '\0')};
    // A thread that ends its communicator says so itself; there is no process to watch.
    StatusOr<std::unique_ptr<Channel>> channel = EnterMemoryGroup(member, nullptr);
    WEFT_CHECK(channel.ok());
    group.push_back(MakeChannelCommunicator(std::move(*channel)));
  }
  return group;
}

}  // namespace weft::comm
