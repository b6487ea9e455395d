// CUDA behind the device seam.
#include <atomic>

#include "worker/core/device/device.h"

#ifdef WEFT_CUDA
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <nccl.h>
#endif

namespace weft {

#ifndef WEFT_CUDA

int CudaDeviceCount() { return 0; }
StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int32_t) {
  return FailedPrecondition(
      "this build has no CUDA; install the CUDA toolkit, then build again with deploy/build.sh");
}

#else

namespace {

// Errors that leave the context unusable: what the runtime documents as requiring the process to
// end.
bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int32_t index, const cudaDeviceProp& properties)
      : index_(index), properties_(properties) {}

  DeviceId id() const override { return {DeviceKind::kCuda, index_}; }

  DeviceInfo info() const override {
    DeviceInfo info;
    info.model = properties_.name;
    info.processors = properties_.multiProcessorCount;
    info.memory_bytes = static_cast<int64_t>(properties_.totalGlobalMem);
    int runtime = 0, nccl = 0;
    cudaRuntimeGetVersion(&runtime);
    ncclGetVersion(&nccl);
    info.libraries = {{"cuda", absl::StrCat(runtime)},
                      {"cublaslt", absl::StrCat(cublasLtGetVersion())},
                      {"cudnn", absl::StrCat(cudnnGetVersion())},
                      {"nccl", absl::StrCat(nccl)}};
    return info;
  }

  StatusOr<void*> Allocate(int64_t bytes) override {
    RETURN_IF_ERROR(Use());
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes > 0 ? bytes : 1));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // it is not sticky, but stays until it is read
      int64_t free = 0, total = 0;
      const bool known = MemoryInUse(&free, &total).ok();
      return ResourceExhausted("the device has no ", bytes, " bytes left",
                               known ? absl::StrCat(" (", free, " of ", total, " free)") : "");
    }
    RETURN_IF_ERROR(Check(error, "allocating"));
    return data;
  }
  void Free(void* data) override {
    if (Use().ok()) Check(cudaFree(data), "freeing").IgnoreError();
  }
  StatusOr<void*> AllocatePinned(int64_t bytes) override {
    RETURN_IF_ERROR(Use());
    void* data = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, static_cast<size_t>(bytes > 0 ? bytes : 1),
                                            cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return ResourceExhausted("no ", bytes, " bytes of pinned host memory");
    }
    RETURN_IF_ERROR(Check(error, "allocating pinned memory"));
    return data;
  }
  void FreePinned(void* data) override {
    if (Use().ok()) Check(cudaFreeHost(data), "freeing pinned memory").IgnoreError();
  }
  Status MemoryInUse(int64_t* free, int64_t* total) override {
    RETURN_IF_ERROR(Use());
    size_t f = 0, t = 0;
    RETURN_IF_ERROR(Check(cudaMemGetInfo(&f, &t), "asking for free memory"));
    *free = static_cast<int64_t>(f);
    *total = static_cast<int64_t>(t);
    return absl::OkStatus();
  }

  StatusOr<StreamTag> CreateStream() override {
    RETURN_IF_ERROR(Use());
    cudaStream_t stream = nullptr;
    RETURN_IF_ERROR(
        Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream"));
    return StreamTag{stream};
  }
  void DestroyStream(StreamTag stream) override {
    if (stream.handle != nullptr) cudaStreamDestroy(Of(stream));
  }
  Status Synchronize(StreamTag stream) override {
    RETURN_IF_ERROR(Use());
    return Check(cudaStreamSynchronize(Of(stream)), "waiting for the stream");
  }

  StatusOr<EventTag> CreateEvent() override {
    RETURN_IF_ERROR(Use());
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(Check(cudaEventCreate(&event), "making an event"));
    return EventTag{event};
  }
  void DestroyEvent(EventTag event) override {
    if (event.handle != nullptr) cudaEventDestroy(Of(event));
  }
  Status Record(EventTag event, StreamTag stream) override {
    return Check(cudaEventRecord(Of(event), Of(stream)), "recording an event");
  }
  Status Wait(StreamTag stream, EventTag event) override {
    return Check(cudaStreamWaitEvent(Of(stream), Of(event), 0), "ordering streams");
  }
  StatusOr<bool> Done(EventTag event) override {
    const cudaError_t error = cudaEventQuery(Of(event));
    if (error == cudaErrorNotReady) return false;
    RETURN_IF_ERROR(Check(error, "asking for an event"));
    return true;
  }
  StatusOr<double> MillisecondsBetween(EventTag begin, EventTag end) override {
    float ms = 0;
    RETURN_IF_ERROR(Check(cudaEventElapsedTime(&ms, Of(begin), Of(end)), "timing"));
    return static_cast<double>(ms);
  }

  Status Copy(void* to, const void* from, int64_t bytes, StreamTag stream) override {
    if (bytes == 0) return absl::OkStatus();
    RETURN_IF_ERROR(Use());
    return Check(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, Of(stream)),
        "copying");
  }
  Status Fill(void* to, uint8_t byte, int64_t bytes, StreamTag stream) override {
    if (bytes == 0) return absl::OkStatus();
    RETURN_IF_ERROR(Use());
    return Check(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), Of(stream)), "filling");
  }

  Status BeginCapture(StreamTag stream) override {
    RETURN_IF_ERROR(Use());
    return Check(cudaStreamBeginCapture(Of(stream), cudaStreamCaptureModeThreadLocal),
                 "beginning to record");
  }
  StatusOr<GraphTag> EndCapture(StreamTag stream) override {
    cudaGraph_t graph = nullptr;
    RETURN_IF_ERROR(Check(cudaStreamEndCapture(Of(stream), &graph), "ending the recording"));
    cudaGraphExec_t exec = nullptr;
    size_t nodes = 0;
    cudaGraphGetNodes(graph, nullptr, &nodes);
    const Status made = Check(cudaGraphInstantiate(&exec, graph, 0), "making the graph");
    cudaGraphDestroy(graph);
    RETURN_IF_ERROR(made);
    return GraphTag{exec, static_cast<int64_t>(nodes)};
  }
  Status LaunchGraph(GraphTag graph, StreamTag stream) override {
    return Check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.handle), Of(stream)),
                 "launching the graph");
  }
  void DestroyGraph(GraphTag graph) override {
    if (graph.handle != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph.handle));
  }

  bool poisoned() const override { return poisoned_; }
  std::string Describe(int error) const override {
    const auto e = static_cast<cudaError_t>(error);
    return absl::StrCat(cudaGetErrorName(e), ": ", cudaGetErrorString(e));
  }

 private:
  static cudaStream_t Of(StreamTag stream) { return static_cast<cudaStream_t>(stream.handle); }
  static cudaEvent_t Of(EventTag event) { return static_cast<cudaEvent_t>(event.handle); }

  // The runtime keeps the current device by thread.
  Status Use() { return Check(cudaSetDevice(index_), "choosing the device"); }

  Status Check(cudaError_t error, const char* doing) {
    if (error == cudaSuccess) return absl::OkStatus();
    if (IsSticky(error)) poisoned_ = true;
    return Internal("cuda:", index_, ": ", doing, ": ", Describe(static_cast<int>(error)));
  }

  const int32_t index_;
  const cudaDeviceProp properties_;
  std::atomic<bool> poisoned_{false};
};

}  // namespace

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int32_t index) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    return FailedPrecondition("no CUDA device can be used: ", cudaGetErrorString(error),
                              "; check the driver with nvidia-smi");
  }
  if (index < 0 || index >= count) {
    return FailedPrecondition("there is no cuda:", index, "; this machine has ", count);
  }
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    return Internal("cuda:", index, ": ", cudaGetErrorString(error));
  }
  return std::unique_ptr<Device>(new CudaDevice(index, properties));
}

#endif  // WEFT_CUDA

}  // namespace weft
