// The completion flag: a word of page-locked memory that a kernel sets when all of its CTAs are
// done. The host polls it, which returns sooner than waiting for the stream: the stream also waits
// until the kernel has left the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "cuda/cuda_check.h"
#include "cuda/device_buffer.h"

namespace dpiframe {

// What a kernel gets; completion_flag.cuh sets it.
struct CompletionFlag {
  unsigned* flag;     // page-locked host memory; null: nobody polls
  unsigned* tickets;  // device memory: CTAs that are done

  bool operator==(const CompletionFlag&) const = default;
};

// For batches of more rows the tickets of all CTAs take longer than waiting for the stream
// (docs/kernels_lookup.md).
constexpr std::int64_t kMaxPolledRows = 16'384;

// A flag with its memory, on the device that is current when it is made. For one kernel at a time,
// on one stream.
class PolledCompletion {
 public:
  PolledCompletion() : flag_(sizeof(unsigned)), tickets_(DeviceBuffer::zeros(sizeof(unsigned))) {}

  CompletionFlag get() const {
    return {static_cast<unsigned*>(flag_.get()), static_cast<unsigned*>(tickets_.get())};
  }

  // Before each launch.
  void reset() const { flag().store(0, std::memory_order_relaxed); }

  // Returns when the kernel's writes are visible to whatever is launched next, on any stream; its
  // own stream may not be idle yet. After kMaxPolls it waits for the stream instead, which also
  // reports a kernel that failed.
  void wait(cudaStream_t stream) const {
    for (int poll = 0; poll < kMaxPolls; ++poll)
      if (flag().load(std::memory_order_acquire) != 0) return;
    DPIF_CUDA_CHECK(cudaStreamSynchronize(stream));
  }

 private:
  static constexpr int kMaxPolls = 1 << 20;  // some tenths of a millisecond

  std::atomic_ref<unsigned> flag() const {
    return std::atomic_ref<unsigned>(*static_cast<unsigned*>(flag_.get()));
  }

  PinnedBuffer flag_;
  DeviceBuffer tickets_;
};

}  // namespace dpiframe
