// What a call record must satisfy before anything is sent.
#pragma once

#include <cstdint>

#include "fabric/base/status.h"
#include "fabric/comm/collective.h"

namespace weft::comm {

// InvalidArgument naming the call and what is wrong with it.
Status CheckCall(const CollectiveCall& call, int32_t rank, int32_t size);

// Lanes of an ordered reduction: those of the call, or one a rank where it names no partials.
int32_t LanesOf(const CollectiveCall& call, int32_t size);

}  // namespace weft::comm
