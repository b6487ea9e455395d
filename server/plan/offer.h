// What a worker offers a job, as it registered it. Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/member_api.pb.h"

namespace weft::plan {

// A worker's GPUs, of one model.
struct GpuOffer {
  int32_t count = 0;  // 0: it has none
  std::string model;
  int32_t processors = 0;                        // of one
  int64_t memory_bytes = 0;                      // of one; 0: unknown
  std::map<std::string, std::string> libraries;  // name -> version
};

struct WorkerOffer {
  std::string worker;
  int32_t free_slots = 0;
  int32_t slots = 1;
  int32_t cores = 1;
  std::vector<std::string> instruction_sets;     // best first
  std::map<std::string, std::string> libraries;  // of jobs on the CPU: name -> version
  std::string opset_digest;
  int64_t memory_bytes = 0;  // of the host; 0: unknown
  GpuOffer gpu;
};

// All slots of `registration` as free.
WorkerOffer OfferOf(const v1::Registration& registration);

}  // namespace weft::plan
