// Which tiles of samples a cluster of two CTAs takes.
#pragma once

#include <cstdint>

namespace dpiframe {

// One tile a cluster.
template <int kSamples>
struct SingleTileScheduler {
  __device__ static std::int64_t first_sample() {
    return static_cast<std::int64_t>(blockIdx.x / 2) * kSamples;
  }
  // CTAs that have a tile; the grid may have more.
  __device__ static unsigned num_busy_ctas(std::int64_t batch) {
    return static_cast<unsigned>((batch + kSamples - 1) / kSamples * 2);
  }
};

// Persistent: tiles first, first + stride, ...
template <int kSamples>
struct PersistentTileScheduler {
  int first;
  int stride;
  int end;

  __device__ explicit PersistentTileScheduler(std::int64_t batch)
      : first(static_cast<int>(blockIdx.x / 2)),
        stride(static_cast<int>(gridDim.x / 2)),
        end(static_cast<int>((batch + kSamples - 1) / kSamples)) {}

  __device__ bool has_work() const { return first < end; }
  __device__ int count() const { return (end - first + stride - 1) / stride; }
  __device__ unsigned num_busy_ctas() const { return static_cast<unsigned>(min(end, stride)) * 2; }
};

}  // namespace dpiframe
