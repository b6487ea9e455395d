// Activities of CUDA devices, by CUPTI's activity API.
//
// Kernels of a replayed graph carry the id of their node in the graph that was made executable. A
// label is given to nodes of the recorded graph; CUPTI says of each node that is cloned which one
// it was cloned from, and so the label follows.
#include "worker/core/device/activity_trace.h"

#ifdef WEFT_CUDA
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdlib>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include <cuda_runtime.h>

#include "fabric/base/clock.h"
#endif

namespace weft {

#ifndef WEFT_CUDA

StatusOr<std::unique_ptr<ActivityTrace>> MakeCudaActivityTrace() {
  return FailedPrecondition("this build has no CUDA");
}
StatusOr<std::string> CudaActivityTraceVersion() {
  return FailedPrecondition("this build has no CUDA");
}
DeviceCeilings CudaCeilings(int32_t) { return {}; }

#else

namespace {

// The calls of the library that are used here.
struct Cupti {
  decltype(&cuptiGetVersion) get_version;
  decltype(&cuptiGetTimestamp) get_timestamp;
  decltype(&cuptiGetResultString) get_result_string;
  decltype(&cuptiSubscribe) subscribe;
  decltype(&cuptiUnsubscribe) unsubscribe;
  decltype(&cuptiEnableCallback) enable_callback;
  decltype(&cuptiGetGraphNodeId) get_graph_node_id;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityDisable) disable;
  decltype(&cuptiActivityFlushAll) flush_all;
  decltype(&cuptiActivityGetNextRecord) next_record;
};

// Folders in which CUDA libraries of this process lie, and where CUPTI lies beside them: in
// toolkits, and in the Python packages of CUDA 12 and 13.
std::vector<std::string> LibraryFolders() {
  std::vector<std::string> folders;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* into) {
        const absl::string_view path = info->dlpi_name;
        for (const char* name : {"/libcublas", "/libnccl", "/libcudnn", "/libcudart"}) {
          const size_t at = path.rfind(name);
          if (at == absl::string_view::npos) continue;
          const std::string folder(path.substr(0, at));
          for (const char* beside :
               {"", "/../extras/CUPTI/lib64", "/../../cuda_cupti/lib", "/../../cu13/lib"}) {
            static_cast<std::vector<std::string>*>(into)->push_back(folder + beside);
          }
        }
        return 0;
      },
      &folders);
  for (const char* home : {"/usr/local/cuda"}) {
    folders.push_back(absl::StrCat(home, "/lib64"));
    folders.push_back(absl::StrCat(home, "/extras/CUPTI/lib64"));
  }
  return folders;
}

StatusOr<Cupti> LoadCupti() {
  const std::string name = absl::StrCat("libcupti.so.", CUDART_VERSION / 1000);
  // By its bare name first: that is where LD_LIBRARY_PATH and the system's folders count.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string why = library == nullptr ? dlerror() : "";
  for (const std::string& folder : LibraryFolders()) {
    if (library != nullptr) break;
    library = dlopen(absl::StrCat(folder, "/", name).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    return FailedPrecondition("kernels cannot be traced: ", why,
                              "; install CUDA's CUPTI (in a toolkit, or pip install "
                              "nvidia-cuda-cupti) and put its folder on LD_LIBRARY_PATH");
  }
  Cupti cupti;
  std::vector<std::string> missing;
  const auto find = [&](const char* symbol, auto* into) {
    *into = reinterpret_cast<std::remove_reference_t<decltype(*into)>>(dlsym(library, symbol));
    if (*into == nullptr) missing.push_back(symbol);
  };
  find("cuptiGetVersion", &cupti.get_version);
  find("cuptiGetTimestamp", &cupti.get_timestamp);
  find("cuptiGetResultString", &cupti.get_result_string);
  find("cuptiSubscribe", &cupti.subscribe);
  find("cuptiUnsubscribe", &cupti.unsubscribe);
  find("cuptiEnableCallback", &cupti.enable_callback);
  find("cuptiGetGraphNodeId", &cupti.get_graph_node_id);
  find("cuptiActivityRegisterCallbacks", &cupti.register_callbacks);
  find("cuptiActivityEnable", &cupti.enable);
  find("cuptiActivityDisable", &cupti.disable);
  find("cuptiActivityFlushAll", &cupti.flush_all);
  find("cuptiActivityGetNextRecord", &cupti.next_record);
  // Never closed: it has hooks in the driver.
  if (missing.empty()) return cupti;
  return FailedPrecondition("kernels cannot be traced: ", name, " has no ",
                            absl::StrJoin(missing, ", "), "; install the CUPTI of CUDA ",
                            CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10);
}

std::string Demangled(const char* name) {
  if (name == nullptr) return "unknown kernel";
  int error = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &error);
  std::string result = error == 0 && text != nullptr ? text : name;
  std::free(text);
  return result;
}

const char* CopyName(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "copy on device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "copy between devices";
    default:
      return "copy";
  }
}

constexpr size_t kBufferBytes = 4 << 20;
constexpr size_t kBufferAlign = 8;
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2,
                                         CUPTI_ACTIVITY_KIND_MEMSET};

class CudaActivityTrace final : public ActivityTrace {
 public:
  explicit CudaActivityTrace(const Cupti& cupti) : cupti_(cupti) {}
  ~CudaActivityTrace() override {
    Disable();
    // Another may be the one in this process.
    CudaActivityTrace* self = this;
    active_.compare_exchange_strong(self, nullptr);
  }

  Status Enable();
  void Label(StreamTag stream, int32_t label) override;
  Status Start() override;
  StatusOr<std::vector<DeviceActivity>> Stop() override;

 private:
  Status Check(CUptiResult result, const char* doing) const {
    if (result == CUPTI_SUCCESS) return absl::OkStatus();
    const char* words = nullptr;
    cupti_.get_result_string(result, &words);
    return FailedPrecondition("kernels cannot be traced: ", doing, ": ",
                              words == nullptr ? "unknown error" : words,
                              "; another profiler may be attached to this process");
  }
  Status WaitForDevice() const;
  void Disable();
  void OnCloned(const CUpti_GraphData& graph);
  // An activity with CUPTI's times, and the graph node that it belongs to; 0: none.
  struct Record {
    uint64_t node = 0;
    DeviceActivity activity;
  };
  static void Take(const CUpti_Activity* record, std::vector<Record>* into);

  // CUPTI's buffer callbacks carry no pointer of ours.
  static void CUPTIAPI OnRequest(uint8_t** buffer, size_t* size, size_t* records);
  static void CUPTIAPI OnComplete(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid);
  static void CUPTIAPI OnCallback(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                  const void* data);
  static std::atomic<CudaActivityTrace*> active_;

  const Cupti cupti_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  unsigned long long recording_ = 0;  // the capture that `seen_` is of
  std::unordered_set<cudaGraphNode_t> seen_;
  bool enabled_ = false;
  std::atomic<bool> keeping_{false};
  int64_t to_monotonic_ns_ = 0;
  absl::Duration started_;  // by CUPTI's clock

  mutable absl::Mutex mu_;
  std::unordered_map<uint64_t, int32_t> labels_ ABSL_GUARDED_BY(mu_);  // by node id
  std::vector<Record> records_ ABSL_GUARDED_BY(mu_);
};

std::atomic<CudaActivityTrace*> CudaActivityTrace::active_{nullptr};

void CudaActivityTrace::OnRequest(uint8_t** buffer, size_t* size, size_t* records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlign, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *records = 0;  // as many as fit
}

void CudaActivityTrace::OnComplete(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CudaActivityTrace* const self = active_;
  if (self != nullptr && self->keeping_ && valid > 0) {
    // No lock of ours is held while CUPTI is called.
    std::vector<Record> records;
    CUpti_Activity* record = nullptr;
    while (self->cupti_.next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
      Take(record, &records);
    }
    absl::MutexLock lock(&self->mu_);
    for (Record& r : records) self->records_.push_back(std::move(r));
  }
  std::free(buffer);
}

void CudaActivityTrace::OnCallback(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                   const void* data) {
  if (domain != CUPTI_CB_DOMAIN_RESOURCE || id != CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) return;
  const auto* resource = static_cast<const CUpti_ResourceData*>(data);
  static_cast<CudaActivityTrace*>(self)->OnCloned(
      *static_cast<const CUpti_GraphData*>(resource->resourceDescriptor));
}

void CudaActivityTrace::OnCloned(const CUpti_GraphData& graph) {
  uint64_t original = 0, clone = 0;
  if (cupti_.get_graph_node_id(graph.originalNode, &original) != CUPTI_SUCCESS ||
      cupti_.get_graph_node_id(graph.node, &clone) != CUPTI_SUCCESS) {
    return;
  }
  absl::MutexLock lock(&mu_);
  if (const auto it = labels_.find(original); it != labels_.end()) {
    const int32_t label = it->second;
    labels_[clone] = label;
  }
}

Status CudaActivityTrace::Enable() {
  CudaActivityTrace* none = nullptr;
  if (!active_.compare_exchange_strong(none, this)) {
    return FailedPrecondition("kernels are being traced in this process already");
  }
  enabled_ = true;
  RETURN_IF_ERROR(Check(cupti_.subscribe(&subscriber_, OnCallback, this), "subscribing"));
  RETURN_IF_ERROR(Check(cupti_.enable_callback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE,
                                               CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED),
                        "following graph nodes"));
  RETURN_IF_ERROR(Check(cupti_.register_callbacks(OnRequest, OnComplete), "giving buffers"));
  // On before graphs are made, so that they are made to be traced node by node.
  for (const CUpti_ActivityKind kind : kKinds) {
    RETURN_IF_ERROR(Check(cupti_.enable(kind), "switching on"));
  }
  return absl::OkStatus();
}

void CudaActivityTrace::Disable() {
  if (!enabled_) return;
  enabled_ = false;
  for (const CUpti_ActivityKind kind : kKinds) cupti_.disable(kind);
  if (subscriber_ != nullptr) cupti_.unsubscribe(subscriber_);
  subscriber_ = nullptr;
}

void CudaActivityTrace::Label(StreamTag stream, int32_t label) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  if (cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream.handle), &status, &id, &graph) !=
          cudaSuccess ||
      status != cudaStreamCaptureStatusActive) {
    return;
  }
  if (id != recording_) seen_.clear();
  recording_ = id;
  size_t count = 0;
  if (cudaGraphGetNodes(graph, nullptr, &count) != cudaSuccess || count == seen_.size()) return;
  std::vector<cudaGraphNode_t> nodes(count);
  if (cudaGraphGetNodes(graph, nodes.data(), &count) != cudaSuccess) return;
  std::vector<uint64_t> added;
  for (const cudaGraphNode_t node : nodes) {
    uint64_t node_id = 0;
    if (seen_.insert(node).second && cupti_.get_graph_node_id(node, &node_id) == CUPTI_SUCCESS) {
      added.push_back(node_id);
    }
  }
  absl::MutexLock lock(&mu_);
  for (const uint64_t node_id : added) labels_[node_id] = label;
}

Status CudaActivityTrace::WaitForDevice() const {
  const cudaError_t error = cudaDeviceSynchronize();
  if (error == cudaSuccess) return absl::OkStatus();
  return Internal("waiting for the device: ", cudaGetErrorString(error));
}

Status CudaActivityTrace::Start() {
  RETURN_IF_ERROR(WaitForDevice());
  // What was done before is dropped.
  RETURN_IF_ERROR(Check(cupti_.flush_all(0), "emptying buffers"));
  uint64_t now = 0;
  RETURN_IF_ERROR(Check(cupti_.get_timestamp(&now), "reading its clock"));
  const int64_t monotonic = absl::ToInt64Nanoseconds(RealClock().Monotonic());
  started_ = absl::Nanoseconds(static_cast<int64_t>(now));
  to_monotonic_ns_ = monotonic - static_cast<int64_t>(now);
  keeping_ = true;
  return absl::OkStatus();
}

StatusOr<std::vector<DeviceActivity>> CudaActivityTrace::Stop() {
  RETURN_IF_ERROR(WaitForDevice());
  RETURN_IF_ERROR(Check(cupti_.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "emptying buffers"));
  keeping_ = false;
  Disable();
  absl::MutexLock lock(&mu_);
  std::vector<DeviceActivity> activities;
  for (Record& record : records_) {
    DeviceActivity& activity = record.activity;
    // Of an earlier step, in a buffer that was not handed over before.
    if (activity.begin < started_) continue;
    activity.begin += absl::Nanoseconds(to_monotonic_ns_);
    activity.end += absl::Nanoseconds(to_monotonic_ns_);
    if (const auto it = labels_.find(record.node); record.node != 0 && it != labels_.end()) {
      activity.label = it->second;
    }
    activities.push_back(std::move(activity));
  }
  records_.clear();
  return activities;
}

// Newer libraries only add to the ends of these records.
void CudaActivityTrace::Take(const CUpti_Activity* record, std::vector<Record>* into) {
  const auto add = [&](const auto& r, DeviceActivity::Kind kind, std::string name, int64_t bytes) {
    Record taken;
    taken.node = r.graphNodeId;
    taken.activity = {.kind = kind,
                      .name = std::move(name),
                      .begin = absl::Nanoseconds(static_cast<int64_t>(r.start)),
                      .end = absl::Nanoseconds(static_cast<int64_t>(r.end)),
                      .stream = r.streamId,
                      .bytes = bytes};
    into->push_back(std::move(taken));
  };
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      return add(kernel, DeviceActivity::Kind::kKernel, Demangled(kernel.name), 0);
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      return add(copy, DeviceActivity::Kind::kCopy, CopyName(copy.copyKind),
                 static_cast<int64_t>(copy.bytes));
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(record);
      return add(copy, DeviceActivity::Kind::kCopy, "copy between devices",
                 static_cast<int64_t>(copy.bytes));
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& fill = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      return add(fill, DeviceActivity::Kind::kFill, "fill", static_cast<int64_t>(fill.bytes));
    }
    default:
      return;
  }
}

}  // namespace

StatusOr<std::unique_ptr<ActivityTrace>> MakeCudaActivityTrace() {
  ASSIGN_OR_RETURN(const Cupti cupti, LoadCupti());
  auto trace = std::make_unique<CudaActivityTrace>(cupti);
  RETURN_IF_ERROR(trace->Enable());
  return std::unique_ptr<ActivityTrace>(std::move(trace));
}

StatusOr<std::string> CudaActivityTraceVersion() {
  ASSIGN_OR_RETURN(const Cupti cupti, LoadCupti());
  uint32_t version = 0;
  if (cupti.get_version(&version) != CUPTI_SUCCESS) return Internal("CUPTI tells no version");
  return absl::StrCat(version);
}

// FLOPs that one multiprocessor does in a cycle, a product and a sum counted as two: NVIDIA's
// architecture white papers (dense).
DeviceCeilings CudaCeilings(int32_t index) {
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    return cudaDeviceGetAttribute(&value, which, index) == cudaSuccess ? value : 0;
  };
  struct Row {
    int major;
    double fp32, tf32, bf16;
  };
  constexpr Row kRows[] = {{8, 128, 1024, 2048}, {9, 256, 2048, 4096}, {10, 256, 4096, 8192}};
  constexpr double kHzPerKhz = 1e3;
  const double cycles =
      attribute(cudaDevAttrClockRate) * kHzPerKhz * attribute(cudaDevAttrMultiProcessorCount);
  DeviceCeilings ceilings;
  // Two transfers a cycle.
  ceilings.memory_bytes = 2 * kHzPerKhz * attribute(cudaDevAttrMemoryClockRate) *
                          attribute(cudaDevAttrGlobalMemoryBusWidth) / 8.0;
  for (const Row& row : kRows) {
    if (row.major != attribute(cudaDevAttrComputeCapabilityMajor)) continue;
    ceilings.fp32_flops = cycles * row.fp32;
    ceilings.tf32_flops = cycles * row.tf32;
    ceilings.bf16_flops = cycles * row.bf16;
  }
  return ceilings;
}

#endif  // WEFT_CUDA

}  // namespace weft
