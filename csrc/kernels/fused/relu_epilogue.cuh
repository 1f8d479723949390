// The ReLU epilogue of the kernels for small batches (mlp, cross): the layer's output to the next
// layer's input in shared memory, or the head's dot.
#pragma once

#include "kernels/fused/consumer.cuh"
#include "ptx/shared_memory.cuh"

namespace dpiframe {

// Biases and the like: a pair for each chunk, all loaded before any is used.
template <int kTile>
__device__ void load_vector(std::uint32_t vector, float2 (&pairs)[kTile / 8]) {
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) pairs[j] = ld_shared_f32x2(vector + j * 32);
}

template <class T, int kTile>
__device__ void store_relu(const float (&sums)[kTile / 2], std::uint32_t bias,
                           std::uint32_t target) {
  float2 adds[kTile / 8];
  load_vector<kTile>(bias, adds);
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t address = target + j * kChunkStride + r * 128;
      st_shared_u32(address, to_pair_bits<T>(at_least(sums[4 * j + 2 * r] + adds[j].x, 0.0f),
                                             at_least(sums[4 * j + 2 * r + 1] + adds[j].y, 0.0f)));
    }
}

// Zeros in the quarter's columns from `width` on, which may be infinite or NaN.
template <int kTile>
__device__ void clear_padding(int width, std::uint32_t target) {
#pragma unroll 1
  for (int j = width / 8; j < kTile / 8; ++j)
    for (int i = 0; i < 4; ++i)
      if (8 * j + ConsumerThread().first_column() + i % 2 >= width)
        st_shared_u16(target + j * kChunkStride + i / 2 * 128 + i % 2 * 2, 0);
}

// The thread's part of the head's dot for its two samples, of the quarter's first `width` columns.
template <int kTile>
__device__ void add_relu_head(const float (&sums)[kTile / 2], std::uint32_t bias,
                              std::uint32_t head, int width, float (&dots)[2]) {
  const int left = width - ConsumerThread().first_column();
  float2 adds[kTile / 8];
  float2 weights[kTile / 8];
  load_vector<kTile>(bias, adds);
  load_vector<kTile>(head, weights);
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = at_least(sums[4 * j + 2 * r] + adds[j].x, 0.0f);
      const float y = at_least(sums[4 * j + 2 * r + 1] + adds[j].y, 0.0f);
      if (8 * j < left) dots[r] = fmaf(x, weights[j].x, dots[r]);
      if (8 * j + 1 < left) dots[r] = fmaf(y, weights[j].y, dots[r]);
    }
}

}  // namespace dpiframe
