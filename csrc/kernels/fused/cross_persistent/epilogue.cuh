// What follows the products of the one-kernel forward pass for large batches.
//
// A thread has two rows of its panel and, of each of the block's two tiles of columns, a pair in
// every chunk. Its numbers of x0 lie where those of x_{l+1} go.
#pragma once

#include "kernels/fused/cross/epilogue.cuh"
#include "kernels/fused/cross_persistent/weight_pipeline.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

// Four 8 x 8 matrices of 16-bit numbers, rows of 16 bytes: a thread has a pair of a row of each, as
// it has of wgmma's sums. `address`: of row lane % 8 of matrix lane / 8.
__device__ inline uint4 load_matrices(std::uint32_t address) {
  uint4 words;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}
__device__ inline void store_matrices(std::uint32_t address, const uint4& words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ inline void store_two_matrices(std::uint32_t address, std::uint32_t x, std::uint32_t y) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(x),
               "r"(y)
               : "memory");
}
// From a chunk to the row whose address the thread gives: matrices are both halves of the warp's 16
// rows of a chunk, then of the next.
__device__ inline int matrix_row_offset(const ForwardThread& thread) {
  return thread.warp * 256 + thread.lane % 16 * 16;
}
// Of chunks 2 i and 2 i + 1 of a tile's `count`; the last in place of those beyond.
__device__ inline std::uint32_t matrix_row(std::uint32_t place, int i, int count) {
  const int chunk = min(2 * i + static_cast<int>(threadIdx.x % 32 / 16), count - 1);
  return place + chunk * kChunkStride;
}

// Where a deep level stands among them.
enum class TallLevel { kFirst, kMiddle, kLast };

// x0 * (sum + bias) + x0 of the pair in a word.
template <class T>
__device__ float2 cross_pair(const float* sums, const float2& bias, std::uint32_t x0) {
  const float2 by = to_floats<T>(x0);
  return {fmaf(by.x, sums[0] + bias.x, by.x), fmaf(by.y, sums[1] + bias.y, by.y)};
}

// A tile of a cross layer, of which `count` chunks are the block's: x0 * (sum + bias) + x0 to the
// place of x0, or the head's dots with it; sums and biases are all layers' so far. `place`: of the
// row that the thread gives of the tile's first chunk. `vectors`: the thread's first bias.
template <class T, int kTile, bool kIsLast>
__device__ void cross_tile(const float (&sums)[kTile / 2], std::uint32_t place,
                           std::uint32_t vectors, int count, float (&dots)[2]) {
  constexpr int kWords = (kTile / 8 + 1) / 2;
  uint4 next = load_matrices(matrix_row(place, 0, count));
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const uint4 by = next;
    if (i + 1 < kWords) next = load_matrices(matrix_row(place, i + 1, count));
    uint4 out{};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int j = 2 * i + k;
      if (j >= kTile / 8) break;
      const float2 bias = load_pair(vectors + 32 * j);
      const float2 first = cross_pair<T>(&sums[4 * j], bias, k == 0 ? by.x : by.z);
      const float2 second = cross_pair<T>(&sums[4 * j + 2], bias, k == 0 ? by.y : by.w);
      if constexpr (kIsLast) {
        const float2 head = load_pair(vectors + 2 * kTile * 4 + 32 * j);
        const bool is_own = j < count;
        dots[0] += is_own ? fmaf(first.y, head.y, first.x * head.x) : 0.0f;
        dots[1] += is_own ? fmaf(second.y, head.y, second.x * head.x) : 0.0f;
      } else {
        (k == 0 ? out.x : out.z) = to_word<T>(first.x, first.y);
        (k == 0 ? out.y : out.w) = to_word<T>(second.x, second.y);
      }
    }
    if constexpr (kIsLast) continue;
    if (2 * i + 1 < count)
      store_matrices(matrix_row(place, i, count), out);
    else if (2 * i < count)
      store_two_matrices(place + 2 * i * kChunkStride, out.x, out.y);
  }
}

// A tile of a deep level, of which `width` columns are the block's: max(sum + bias, 0), zeros
// beyond. The first level's goes to `stored`, the thread's first word; others to `place`, as a
// cross layer's; of the last the head's dots.
template <class T, int kTile, TallLevel kLevel>
__device__ void deep_tile(const float (&sums)[kTile / 2], char* stored, std::uint32_t place,
                          std::uint32_t vectors, int width, float (&dots)[2]) {
  constexpr bool kIsLast = kLevel == TallLevel::kLast;
  const int left = width - ForwardThread().own();
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j) {
    const float2 bias = load_pair(vectors + 32 * j);
    const bool has[] = {8 * j < left, 8 * j + 1 < left};
    float2 pairs[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = at_least(sums[4 * j + 2 * r] + bias.x, 0.0f);
      const float y = at_least(sums[4 * j + 2 * r + 1] + bias.y, 0.0f);
      pairs[r] = {has[0] ? x : 0.0f, has[1] ? y : 0.0f};
    }
    if constexpr (kIsLast) {
      const float2 head = load_pair(vectors + 2 * kTile * 4 + 32 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        dots[r] = fmaf(pairs[r].y, head.y, fmaf(pairs[r].x, head.x, dots[r]));
      continue;
    }
    const std::uint32_t words[] = {to_word<T>(pairs[0].x, pairs[0].y),
                                   to_word<T>(pairs[1].x, pairs[1].y)};
    if constexpr (kLevel == TallLevel::kFirst) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        __stcg(reinterpret_cast<unsigned*>(stored + j * kChunkStride + r * 128), words[r]);
    } else {
      store_two_matrices(place + j * kChunkStride, words[0], words[1]);
    }
  }
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
