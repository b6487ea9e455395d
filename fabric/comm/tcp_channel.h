// The channel over TCP connections to all peers.
#pragma once

#include <memory>
#include <vector>

#include "fabric/comm/channel.h"
#include "fabric/comm/tcp_handshake.h"

namespace weft::comm {

// `links` holds a data and a control link for each other rank.
StatusOr<std::unique_ptr<Channel>> MakeTcpChannel(int32_t rank, int32_t size,
                                                  std::vector<Link> links);

}  // namespace weft::comm
