// Waiting for a kernel by polling a word in page-locked memory that it writes itself, which comes
// sooner than the end of its stream: that has to wait for the kernel to be gone, too.
//
// When wait returns, all that the kernel wrote can be read by whatever is launched next, on any
// stream, though its own stream may not be idle yet. One kernel at a time, on one stream.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

#include "cuda/completion_flag.h"
#include "cuda/cuda_check.h"
#include "cuda/device_buffer.h"

namespace dpiframe {

class KernelEndWait {
 public:
  KernelEndWait() : word_(sizeof(unsigned)), tickets_(sizeof(unsigned)) {  // device: the current
    DPIF_CUDA_CHECK(cudaMemset(tickets_.get(), 0, sizeof(unsigned)));
    DPIF_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  }

  KernelEnd end() const {
    return {static_cast<unsigned*>(word_.get()), static_cast<unsigned*>(tickets_.get())};
  }

  // Before each launch.
  void reset() const { word().store(0, std::memory_order_relaxed); }

  // Past kPolls its stream says, and whether it failed.
  void wait(cudaStream_t stream) const {
    for (int poll = 0; poll < kPolls; ++poll)
      if (word().load(std::memory_order_acquire) != 0) return;
    DPIF_CUDA_CHECK(cudaStreamSynchronize(stream));
  }

 private:
  // Some tenths of a millisecond, longer than a small batch takes.
  static constexpr int kPolls = 1 << 20;

  std::atomic_ref<unsigned> word() const {
    return std::atomic_ref<unsigned>(*static_cast<unsigned*>(word_.get()));
  }

  PinnedBuffer word_;
  DeviceBuffer tickets_;
};

}  // namespace dpiframe
