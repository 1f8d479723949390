// Waiting for a kernel by polling a word in page-locked memory that it writes itself, which comes
// sooner than the end of its stream: that has to wait for the kernel to be gone, too.
//
// When wait returns, all that the kernel wrote can be read by whatever is launched next, on any
// stream, though its own stream may not be idle yet. One kernel at a time, on one stream.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

#include "common/cuda_check.h"
#include "common/device_buffer.h"

namespace dpiframe {

// What the kernel is given.
struct KernelEnd {
  unsigned* word;     // the host's, or null: nobody polls
  unsigned* tickets;  // the device's: blocks that are done
};

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

  // A kernel that fails is an error, however late that is seen.
  void wait(cudaStream_t stream) const {
    for (;;) {
      for (int poll = 0; poll < kPolls; ++poll)
        if (word().load(std::memory_order_acquire) != 0) return;
      const cudaError_t status = cudaStreamQuery(stream);
      if (status == cudaSuccess) return;
      if (status != cudaErrorNotReady) DPIF_CUDA_CHECK(status);
      (void)cudaGetLastError();  // "not ready" is no failure of the next launch
    }
  }

 private:
  // Some tenths of a millisecond: asking CUDA takes longer than a look at the word.
  static constexpr int kPolls = 1 << 20;

  std::atomic_ref<unsigned> word() const {
    return std::atomic_ref<unsigned>(*static_cast<unsigned*>(word_.get()));
  }

  PinnedBuffer word_;
  DeviceBuffer tickets_;
};

}  // namespace dpiframe
