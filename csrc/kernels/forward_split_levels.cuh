// What is made of sums in the one-kernel forward pass for float32: activations as two float16 each,
// and the head's dots.
//
// Of each strip of 16 columns a thread has four neighbours of two rows: of row first_row() sums
// {0, 1, 4, 5} of the strip's eight, of the row 8 below {2, 3, 6, 7}. Its numbers of x0 are its
// own: they go to global memory and come back through the stream.
#pragma once

#include "kernels/forward_split_stream.cuh"
#include "kernels/linear_split_rows.cuh"

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

// From the start of a quarter to the thread's first four numbers' large parts of its first row.
__device__ inline int split_offset(const ForwardThread& thread) {
  const int four = thread.lane % 4;
  return four / 2 * 1024 + thread.first_row() * 16 + four % 2 * 8;
}

// Two words' four numbers, large + small over their power of two.
__device__ inline float4 joined(const uint2& large, const uint2& small, float inverse) {
  const auto pair = [&](const std::uint32_t& l, const std::uint32_t& s) {
    const float2 a = __half22float2(reinterpret_cast<const __half2&>(l));
    const float2 b = __half22float2(reinterpret_cast<const __half2&>(s));
    return float2{(a.x + b.x) * inverse, (a.y + b.y) * inverse};
  };
  const float2 low = pair(large.x, small.x);
  const float2 high = pair(large.y, small.y);
  return {low.x, low.y, high.x, high.y};
}
__device__ inline uint2 load_two(std::uint32_t address) {
  uint2 two;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(two.x), "=r"(two.y)
               : "r"(address)
               : "memory");
  return two;
}

struct ToShared {
  std::uint32_t place;

  __device__ void two(int offset, std::uint32_t x, std::uint32_t y) const {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(place + offset), "r"(x), "r"(y)
                 : "memory");
  }
  __device__ void one(int offset, std::uint32_t byte) const {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(place + offset), "r"(byte) : "memory");
  }
};
struct ToEither {  // shared or global memory
  char* place;

  __device__ void two(int offset, std::uint32_t x, std::uint32_t y) const {
    asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(place + offset), "r"(x), "r"(y) : "memory");
  }
  __device__ void one(int offset, std::uint32_t byte) const {
    asm volatile("st.u8 [%0], %1;" ::"l"(place + offset), "r"(byte) : "memory");
  }
};

// The thread's numbers to a quarter of `count` strips at `to`. tops: their largest magnitudes, of
// either row.
template <int kTile, class To>
__device__ void store_quarter(const float (&values)[kTile / 2], const float (&tops)[2], int count,
                              const To& to) {
  const ForwardThread thread;
  const RowPowers powers(tops[0], tops[1]);
  const int offset = split_offset(thread);
#pragma unroll
  for (int i = 0; i < kTile / kSplitStrip; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float by = powers.factor[r];
      const SplitPair low(values[8 * i + split_sum(r, 0)] * by,
                          values[8 * i + split_sum(r, 1)] * by);
      const SplitPair high(values[8 * i + split_sum(r, 2)] * by,
                           values[8 * i + split_sum(r, 3)] * by);
      if (i >= count) continue;
      const int at = offset + i * kSplitStripBytes + r * 128;
      to.two(at, low.large, high.large);
      to.two(at + kSplitStripBytes / 2, low.small, high.small);
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

// Biases, inverse powers of two and head of the thread's columns of `kColumns` of either tile, a
// strip at a time.
template <int kColumns>
struct SplitVectors {
  std::uint32_t place;

  __device__ explicit SplitVectors(std::uint32_t vectors)
      : place(kept(vectors + threadIdx.x / 128 * kColumns * 4 + threadIdx.x % 4 * 16)) {}
  __device__ float4 bias(int i) const { return load_four(place + i * 64); }
  __device__ float4 inverse(int i) const { return load_four(place + 2 * kColumns * 4 + i * 64); }
  __device__ float4 head(int i) const { return load_four(place + 4 * kColumns * 4 + i * 64); }
};

__device__ inline float in_four(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// What a cross layer's end has of a row's four columns.
struct SplitCross {
  float4 x0;
  float4 xl;
  float4 bias;
  float4 inverse;
  float4 head;

  // value: a sum that becomes x0 * (sum + bias) + xl. dot += the head's; top: the largest
  // magnitude.
  __device__ void end(float& value, int k, float& dot, float& top) const {
    const float sum = fmaf(value, in_four(inverse, k), in_four(bias, k));
    value = fmaf(in_four(x0, k), sum, in_four(xl, k));
    dot = fmaf(value, in_four(head, k), dot);
    top = fmaxf(top, fabsf(value));
  }
};

// The end of a cross layer of a warpgroup's quarter: values = x0 * (sums + bias) + x_l. tops: the
// largest magnitudes. dots += the head's, of zeros but for the last level: its instructions are
// fewer than those of a form of its own, which would have to come from L2.
template <int kTile, bool kEachLeaves>
struct SplitCrossEnd {
  SplitStream<kEachLeaves>& stream;
  std::uint32_t xl;  // the quarter, of
  int count;         // strips
  ForwardThread thread{};

  __device__ void run(float (&values)[kTile / 2], float (&dots)[2], float (&tops)[2]) {
    const float inverse[] = {load_inverse(xl, count, thread.first_row()),
                             load_inverse(xl, count, thread.first_row() + 8)};
    strips<0>(values, inverse, dots, tops);
  }

 private:
  // Those from kFirst on, a piece of vectors and x0 after the other.
  template <int kFirst>
  __device__ void strips(float (&values)[kTile / 2], const float (&inverse)[2], float (&dots)[2],
                         float (&tops)[2]) {
    constexpr int kEnd = forward_split_strips_end(kTile, kFirst);
    constexpr int kColumns = (kEnd - kFirst) * kSplitStrip;
    constexpr int kWordsBytes = 2 * (kEnd - kFirst) * kSplitWordBytes;
    std::uint32_t barriers[3];
    const SplitVectors<kColumns> vectors(
        stream.take(forward_split_vector_bytes(kColumns), barriers[0]));
    std::uint32_t x0 = stream.take(kWordsBytes, barriers[1]);
    if (thread.group == 1) x0 = stream.take(kWordsBytes, barriers[2]);
    x0 += threadIdx.x % 128 * 16;
    const std::uint32_t own = xl + split_offset(thread);
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::uint32_t place = own + min(i, count - 1) * kSplitStripBytes + r * 128;
        const SplitCross four{load_four(x0 + (2 * (i - kFirst) + r) * kSplitWordBytes),
                              joined(load_two(place), load_two(place + kSplitStripBytes / 2),
                                     i < count ? inverse[r] : 0.0f),
                              vectors.bias(i - kFirst), vectors.inverse(i - kFirst),
                              vectors.head(i - kFirst)};
#pragma unroll
        for (int k = 0; k < 4; ++k) four.end(values[8 * i + split_sum(r, k)], k, dots[r], tops[r]);
      }
    stream.leave(barriers[0]);
    stream.leave(barriers[1]);
    if (thread.group == 0) stream.take(kWordsBytes, barriers[2]);
    stream.leave(barriers[2]);
    if constexpr (kEnd < kTile / kSplitStrip) strips<kEnd>(values, inverse, dots, tops);
  }
};

// values = max(sums + bias, 0); dots as above.
template <int kTile>
__device__ void end_deep(float (&values)[kTile / 2], const SplitVectors<kTile>& vectors,
                         float (&dots)[2], float (&tops)[2]) {
#pragma unroll
  for (int i = 0; i < kTile / kSplitStrip; ++i) {
    const float4 bias = vectors.bias(i);
    const float4 scale = vectors.inverse(i);
    const float4 head = vectors.head(i);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& value = values[8 * i + split_sum(r, k)];
        value = at_least(fmaf(value, in_four(scale, k), in_four(bias, k)), 0.0f);
        dots[r] = fmaf(value, in_four(head, k), dots[r]);
        tops[r] = fmaxf(tops[r], value);
      }
  }
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
