// Move-only owners of a CUDA stream and of a CUDA event.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <utility>

#include "cuda/cuda_check.h"

namespace dpiframe {

// A stream that does not wait for the legacy default stream.
class Stream {
 public:
  Stream() { DPIF_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() {
    if (stream_ != nullptr) DPIF_CUDA_WARN(cudaStreamDestroy(stream_));
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }

  cudaStream_t get() const { return stream_; }
  void wait_for(cudaEvent_t event) const {
    DPIF_CUDA_CHECK(cudaStreamWaitEvent(stream_, event, 0));
  }
  void synchronize() const { DPIF_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// An event for ordering only: it keeps no time, which makes recording it cheaper.
class Event {
 public:
  explicit Event(unsigned flags = cudaEventDisableTiming) {
    DPIF_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags));
  }
  ~Event() {
    if (event_ != nullptr) DPIF_CUDA_WARN(cudaEventDestroy(event_));
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) const { DPIF_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void record(const Stream& stream) const { record(stream.get()); }
  // What `stream` is given from now on comes after what was recorded.
  void hold(cudaStream_t stream) const { DPIF_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0)); }

 private:
  cudaEvent_t event_ = nullptr;
};

// An event that keeps the time at which the device came to it, and for which a thread may sleep.
class TimedEvent : public Event {
 public:
  TimedEvent() : Event(cudaEventBlockingSync) {}

  // Looks out for it for as long as `spin`, which wakes at once, then leaves the core to others.
  void synchronize(std::chrono::microseconds spin) const {
    const auto end = std::chrono::steady_clock::now() + spin;
    cudaError_t status = cudaErrorNotReady;
    while (status == cudaErrorNotReady && std::chrono::steady_clock::now() < end)
      status = cudaEventQuery(get());
    (void)cudaGetLastError();  // "not ready" is no failure of the next launch
    if (status == cudaErrorNotReady) status = cudaEventSynchronize(get());
    DPIF_CUDA_CHECK(status);
  }
};

}  // namespace dpiframe
