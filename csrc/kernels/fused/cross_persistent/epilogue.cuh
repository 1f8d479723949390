// The epilogues of the persistent fused cross kernel.
//
// A thread has two samples of its panel and, of each of the CTA's two tiles of columns, a pair in
// every chunk. Its numbers of x_0 are where those of x_{l+1} go.
#pragma once

#include "kernels/fused/cross/epilogue.cuh"
#include "ptx/global_memory.cuh"

namespace dpiframe {

// From a chunk to the matrix row whose address the thread gives to ldmatrix and stmatrix: matrices
// are both halves of the warp's 16 samples of a chunk, then of the next.
__device__ inline int matrix_row_offset(const ConsumerThread& thread) {
  return thread.warp * 256 + thread.lane % 16 * 16;
}
// Of chunks 2 i and 2 i + 1 of a tile's `count`; of the last in place of those beyond.
__device__ inline std::uint32_t matrix_row(std::uint32_t first, int i, int count) {
  const int chunk = min(2 * i + static_cast<int>(threadIdx.x % 32 / 16), count - 1);
  return first + chunk * kChunkStride;
}

// Which of the deep layers.
enum class DeepLayer { kFirst, kMiddle, kLast };

// x_0 * (sum + bias) + x_0 of a pair.
template <class T>
__device__ float2 cross_pair(const float* sums, const float2& bias, std::uint32_t x0) {
  const float2 by = to_floats<T>(x0);
  return {fmaf(by.x, sums[0] + bias.x, by.x), fmaf(by.y, sums[1] + bias.y, by.y)};
}

// A tile of a cross layer, of which `count` chunks are the CTA's: x_0 * (sum + bias) + x_0 in place
// of x_0, or the head's dots with it; sums and biases are all layers' so far. `x`: of the first
// chunk the matrix row that the thread gives. `vectors`: the thread's first bias.
template <class T, int kTile, bool kIsLast>
__device__ void cross_tile(const float (&sums)[kTile / 2], std::uint32_t x, std::uint32_t vectors,
                           int count, float (&dots)[2]) {
  constexpr int kWords = (kTile / 8 + 1) / 2;
  uint4 next = ldmatrix_x4(matrix_row(x, 0, count));
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const uint4 by = next;
    if (i + 1 < kWords) next = ldmatrix_x4(matrix_row(x, i + 1, count));
    uint4 out{};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int j = 2 * i + k;
      if (j >= kTile / 8) break;
      const float2 bias = ld_shared_f32x2(vectors + 32 * j);
      const float2 first = cross_pair<T>(&sums[4 * j], bias, k == 0 ? by.x : by.z);
      const float2 second = cross_pair<T>(&sums[4 * j + 2], bias, k == 0 ? by.y : by.w);
      if constexpr (kIsLast) {
        const float2 head = ld_shared_f32x2(vectors + 2 * kTile * 4 + 32 * j);
        const bool is_own = j < count;
        dots[0] += is_own ? fmaf(first.y, head.y, first.x * head.x) : 0.0f;
        dots[1] += is_own ? fmaf(second.y, head.y, second.x * head.x) : 0.0f;
      } else {
        (k == 0 ? out.x : out.z) = to_pair_bits<T>(first.x, first.y);
        (k == 0 ? out.y : out.w) = to_pair_bits<T>(second.x, second.y);
      }
    }
    if constexpr (kIsLast) continue;
    if (2 * i + 1 < count)
      stmatrix_x4(matrix_row(x, i, count), out);
    else if (2 * i < count)
      stmatrix_x2(x + 2 * i * kChunkStride, out.x, out.y);
  }
}

// A tile of a deep layer, of which `width` columns are the CTA's: max(sum + bias, 0), zeros beyond.
// The first layer's output goes to `stored` in global memory, the thread's first pair; others' to
// `h`, as a cross layer's; of the last layer's the head's dots.
template <class T, int kTile, DeepLayer kLayer>
__device__ void deep_tile(const float (&sums)[kTile / 2], char* stored, std::uint32_t h,
                          std::uint32_t vectors, int width, float (&dots)[2]) {
  constexpr bool kIsLast = kLayer == DeepLayer::kLast;
  const int left = width - ConsumerThread().first_column();
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) {
    const float2 bias = ld_shared_f32x2(vectors + 32 * j);
    const bool has[] = {8 * j < left, 8 * j + 1 < left};
    float2 pairs[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = at_least(sums[4 * j + 2 * r] + bias.x, 0.0f);
      const float y = at_least(sums[4 * j + 2 * r + 1] + bias.y, 0.0f);
      pairs[r] = {has[0] ? x : 0.0f, has[1] ? y : 0.0f};
    }
    if constexpr (kIsLast) {
      const float2 head = ld_shared_f32x2(vectors + 2 * kTile * 4 + 32 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        dots[r] = fmaf(pairs[r].y, head.y, fmaf(pairs[r].x, head.x, dots[r]));
      continue;
    }
    const std::uint32_t words[] = {to_pair_bits<T>(pairs[0].x, pairs[0].y),
                                   to_pair_bits<T>(pairs[1].x, pairs[1].y)};
    if constexpr (kLayer == DeepLayer::kFirst) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        __stcg(reinterpret_cast<unsigned*>(stored + j * kChunkStride + r * 128), words[r]);
    } else {
      stmatrix_x2(h + j * kChunkStride, words[0], words[1]);
    }
  }
}

}  // namespace dpiframe
