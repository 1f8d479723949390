// What is made of sums in the one-kernel forward pass for float32: activations as two float16 each,
// and the head's dots.
//
// Of each strip of 16 columns a thread has four neighbours of two rows: of row first_row() sums
// {0, 1, 4, 5} of the strip's eight, of the row 8 below {2, 3, 6, 7}. Its numbers of x0 are its
// own: they go to global memory and come back through the stream.
#pragma once

#include "kernels/fused/cross_fp16x3/weight_pipeline.cuh"
#include "kernels/gemm/fp16x3_rows.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

// Where in a strip's eight sums the number of a row of two is, of its four.
__device__ constexpr int split_sum(int r, int i) {
  return i / 2 * 4 + r * 2 + i % 2;
}

__device__ inline float4 load_four(std::uint32_t address) {
  const uint4 words = load_words(address);
  return {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
          __uint_as_float(words.w)};
}

// From the start of a quarter to the large parts of the thread's first two numbers of its first
// row; the other two lie a chunk behind. A warp's are 128 bytes in a row, of either chunk.
__device__ inline int split_offset(const ForwardThread& thread) {
  return thread.first_row() * 16 + thread.lane % 4 * 4;
}

struct ToShared {
  std::uint32_t place;

  __device__ void word(int offset, std::uint32_t word) const { store_word(place + offset, word); }
  __device__ void one(int offset, std::uint32_t byte) const {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(place + offset), "r"(byte) : "memory");
  }
};
struct ToGlobal {
  char* place;

  __device__ void word(int offset, std::uint32_t word) const {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(place + offset), "r"(word) : "memory");
  }
  __device__ void one(int offset, std::uint32_t byte) const {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(place + offset), "r"(byte) : "memory");
  }
};

// The thread's numbers to a quarter of `count` strips at `to`. tops: their largest magnitudes, of
// either row.
template <int kTile, class To>
__device__ void store_quarter(const float (&values)[kTile / 2], const float (&tops)[2], int count,
                              const To& to) {
  const ForwardThread thread;
  const RowPowers powers(tops[0], tops[1]);
  const int offset = static_cast<int>(kept(split_offset(thread)));
#pragma unroll
  for (int i = 0; i < kTile / kSplitStrip; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float by = powers.factor[r];
      const Fp16x3Pair low(values[8 * i + split_sum(r, 0)] * by,
                          values[8 * i + split_sum(r, 1)] * by);
      const Fp16x3Pair high(values[8 * i + split_sum(r, 2)] * by,
                           values[8 * i + split_sum(r, 3)] * by);
      if (i >= count) continue;
      const int at = offset + i * kSplitStripBytes + r * 128;
      to.word(at, low.large);
      to.word(at + kSplitChunkBytes, high.large);
      to.word(at + kSplitStripBytes / 2, low.small);
      to.word(at + kSplitStripBytes / 2 + kSplitChunkBytes, high.small);
    }
  if (thread.lane % 4 == 0)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      to.one(count * kSplitStripBytes + thread.first_row() + 8 * r,
             __float_as_uint(powers.inverse[r]) >> 23);
  __syncwarp();
}
// The inverse power of two of the thread's first row, or of that 8 below, of a quarter of `count`
// strips.
__device__ inline float load_inverse(std::uint32_t quarter, int count, int row) {
  std::uint32_t exponent;
  asm volatile("ld.shared.u8 %0, [%1];"
               : "=r"(exponent)
               : "r"(quarter + count * kSplitStripBytes + row)
               : "memory");
  return __uint_as_float(exponent << 23);
}

// Vectors of the thread's columns of `kColumns` of either tile, a strip at a time.
template <int kColumns>
struct SplitVectors {
  std::uint32_t place;

  __device__ explicit SplitVectors(std::uint32_t vectors)
      : place(kept(vectors + threadIdx.x / 128 * kColumns * 4 + threadIdx.x % 4 * 16)) {}
  __device__ float4 bias(int i) const { return load_four(place + i * 64); }
  __device__ float4 inverse(int i) const { return load_four(place + 2 * kColumns * 4 + i * 64); }
  // The head, or what leads to the next cross layer's powers of two.
  __device__ float4 last(int i) const { return load_four(place + 4 * kColumns * 4 + i * 64); }
};

__device__ inline float in_four(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// The end of a cross layer of a warpgroup's quarter. As x_{l+1} is x_l + x0 * (W_l x_l + b_l), it
// is x0 + x0 * (all layers' products so far + all their biases): values = that. products: in the
// powers of two of this layer's w, then of the next one's. tops: the largest magnitudes. The last
// layer's dots += the head's.
template <int kTile, bool kEachLeaves>
struct SplitCrossEnd {
  SplitStream<kEachLeaves>& stream;
  bool is_last;

  // Of the strips from kFirst on, a piece of vectors and x0 after the other.
  template <int kFirst = 0>
  __device__ void run(float (&products)[kTile / 2], float (&values)[kTile / 2], float (&dots)[2],
                      float (&tops)[2]) {
    constexpr int kEnd = forward_split_strips_end(kTile, kFirst);
    constexpr int kColumns = (kEnd - kFirst) * kSplitStrip;
    std::uint32_t barriers[2];
    const SplitVectors<kColumns> vectors(
        stream.take(forward_split_vector_bytes(kColumns), barriers[0]));
    const std::uint32_t x0 = stream.take((kEnd - kFirst) * kSplitX0Bytes, barriers[1]) +
                             threadIdx.x / 128 * 2 * kSplitWordBytes + threadIdx.x % 128 * 16;
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) {
      const float4 bias = vectors.bias(i - kFirst);
      const float4 inverse = vectors.inverse(i - kFirst);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float4 first = load_four(x0 + (i - kFirst) * kSplitX0Bytes + r * kSplitWordBytes);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int at = 8 * i + split_sum(r, k);
          const float factor = fmaf(products[at], in_four(inverse, k), in_four(bias, k));
          values[at] = fmaf(in_four(first, k), factor, in_four(first, k));
          tops[r] = fmaxf(tops[r], fabsf(values[at]));
        }
      }
    }
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) {
      const float4 last = vectors.last(i - kFirst);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int at = 8 * i + split_sum(j / 4, j % 4);
        if (is_last)
          dots[j / 4] = fmaf(values[at], in_four(last, j % 4), dots[j / 4]);
        else
          products[at] *= in_four(last, j % 4);
      }
    }
    stream.leave(barriers[0]);
    stream.leave(barriers[1]);
    if constexpr (kEnd < kTile / kSplitStrip) run<kEnd>(products, values, dots, tops);
  }
};

// values = max(sums + bias, 0); the rest as above.
template <int kTile>
__device__ void end_deep(float (&values)[kTile / 2], const SplitVectors<kTile>& vectors,
                         bool is_last, float (&dots)[2], float (&tops)[2]) {
#pragma unroll
  for (int i = 0; i < kTile / kSplitStrip; ++i) {
    const float4 bias = vectors.bias(i);
    const float4 scale = vectors.inverse(i);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& value = values[8 * i + split_sum(r, k)];
        value = at_least(fmaf(value, in_four(scale, k), in_four(bias, k)), 0.0f);
        tops[r] = fmaxf(tops[r], value);
      }
  }
  if (!is_last) return;
#pragma unroll
  for (int i = 0; i < kTile / kSplitStrip; ++i) {
    const float4 head = vectors.last(i);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        dots[r] = fmaf(values[8 * i + split_sum(r, k)], in_four(head, k), dots[r]);
  }
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
