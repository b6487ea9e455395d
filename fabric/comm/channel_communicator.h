// A Communicator over any Channel. Thread-safety as communicator.h says.
#pragma once

#include <memory>

#include "fabric/comm/channel.h"
#include "fabric/comm/communicator.h"

namespace weft::comm {

std::unique_ptr<Communicator> MakeChannelCommunicator(std::unique_ptr<Channel> channel);

}  // namespace weft::comm
