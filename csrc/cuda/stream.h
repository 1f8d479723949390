// The current device, and move-only owners of CUDA streams and events.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <utility>

#include "cuda/cuda_check.h"

namespace dpiframe {

// Makes a device current for as long as it lives, then the previous one again.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device) {
    DPIF_CUDA_CHECK(cudaGetDevice(&previous_));
    // Setting a device costs more than asking for the current one.
    if (previous_ != device_) DPIF_CUDA_CHECK(cudaSetDevice(device_));
  }
  ~DeviceGuard() {
    if (previous_ != device_) DPIF_CUDA_WARN(cudaSetDevice(previous_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int device_;
  int previous_ = 0;
};

// For destructors and handlers, before the memory that the stream's work uses goes. A failure of
// that work was reported where it was started; after one there is nothing to wait for.
inline void drain(cudaStream_t stream) noexcept {
  if (cudaStreamSynchronize(stream) != cudaSuccess) (void)cudaGetLastError();
}

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
  // Work that `stream` gets from now on waits for what was recorded.
  void hold(cudaStream_t stream) const { DPIF_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0)); }

 private:
  cudaEvent_t event_ = nullptr;
};

// An event that keeps the time at which the device reached it, and for which a thread may sleep.
class TimedEvent : public Event {
 public:
  TimedEvent() : Event(cudaEventBlockingSync) {}

  // Polls for as long as `spin`, which returns at once, then sleeps and leaves the core to others.
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

inline double seconds_between(const TimedEvent& begin, const TimedEvent& end) {
  float milliseconds = 0;
  DPIF_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return 1e-3 * milliseconds;
}

}  // namespace dpiframe
