// What is made of sums in the one-kernel forward pass for float32: activations as two float16 each,
// and the head's dots.
//
// Of each strip of 16 columns a thread has four neighbours of two rows: of row first_row() sums
// {0, 1, 4, 5} of the strip's eight, of the row 8 below {2, 3, 6, 7}. Its numbers of x0 are its own
// in global memory: nobody else reads them.
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

__device__ inline float4 load_own(const float4* place) {
  float4 four;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "l"(place)
               : "memory");
  return four;
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
  __device__ void one(int offset, float value) const {
    store_word(place + offset, __float_as_uint(value));
  }
};
struct ToGlobal {
  char* place;

  __device__ void two(int offset, std::uint32_t x, std::uint32_t y) const {
    __stcg(reinterpret_cast<uint2*>(place + offset), uint2{x, y});
  }
  __device__ void one(int offset, float value) const {
    __stcg(reinterpret_cast<float*>(place + offset), value);
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
  if (thread.lane % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r)
    to.one(count * kSplitStripBytes + (thread.first_row() + 8 * r) * 4, powers.inverse[r]);
}

// Biases, inverse powers of two and head of the thread's columns of a tile, a strip at a time.
template <int kTile>
struct SplitVectors {
  std::uint32_t place;

  __device__ explicit SplitVectors(std::uint32_t vectors)
      : place(kept(vectors + threadIdx.x / 128 * kTile * 4 + threadIdx.x % 4 * 16)) {}
  __device__ float4 bias(int i) const { return load_four(place + i * 64); }
  __device__ float4 inverse(int i) const { return load_four(place + 2 * kTile * 4 + i * 64); }
  __device__ float4 head(int i) const { return load_four(place + 4 * kTile * 4 + i * 64); }
};

__device__ inline float in_four(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// The thread's numbers of x0, four at a time: of either row of a strip. So many fours are on their
// way to registers at a time.
constexpr int kSplitAhead = 12;

template <int kTile>
struct SplitX0 {
  static constexpr int kWords = kTile / kSplitStrip * 2;
  const float4* place;  // of the first; others 128 behind
  float4 words[kWords];

  __device__ explicit SplitX0(const float4* first) : place(first) {
#pragma unroll
    for (int i = 0; i < kSplitAhead; ++i) load(i);
  }
  __device__ void load(int i) {
    if (i < kWords) words[i] = load_own(place + i * 128);
  }
};

// values = x0 * (sums + bias) + x_l, x_l at `xl`, the start of the thread's quarter; in the first
// level x_l is x0. Or, in the last, the head's dots with that. tops: the largest magnitudes.
template <int kTile, bool kIsFirst, bool kIsLast>
__device__ void end_cross(float (&values)[kTile / 2], SplitX0<kTile>& x0, std::uint32_t xl,
                          int count, const SplitVectors<kTile>& vectors, float (&dots)[2],
                          float (&tops)[2]) {
  const ForwardThread thread;
  const std::uint32_t own = kept(xl + split_offset(thread));
  float inverse[2] = {};
#pragma unroll
  for (int r = 0; !kIsFirst && r < 2; ++r)
    inverse[r] = load_float(xl + count * kSplitStripBytes + (thread.first_row() + 8 * r) * 4);
#pragma unroll
  for (int i = 0; i < kTile / kSplitStrip; ++i) {
    const float4 bias = vectors.bias(i);
    const float4 scale = vectors.inverse(i);
    float4 head{};
    if constexpr (kIsLast) head = vectors.head(i);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      x0.load(2 * i + r + kSplitAhead);
      const float4 by = x0.words[2 * i + r];
      float4 add = by;
      if constexpr (!kIsFirst) {
        const std::uint32_t place = own + min(i, count - 1) * kSplitStripBytes + r * 128;
        add = joined(load_two(place), load_two(place + kSplitStripBytes / 2),
                     i < count ? inverse[r] : 0.0f);
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& value = values[8 * i + split_sum(r, k)];
        value =
            fmaf(in_four(by, k), fmaf(value, in_four(scale, k), in_four(bias, k)), in_four(add, k));
        if constexpr (kIsLast)
          dots[r] = fmaf(value, in_four(head, k), dots[r]);
        else
          tops[r] = fmaxf(tops[r], fabsf(value));
      }
    }
  }
}

// values = max(sums + bias, 0), or the head's dots with that.
template <int kTile, bool kIsLast>
__device__ void end_deep(float (&values)[kTile / 2], const SplitVectors<kTile>& vectors,
                         float (&dots)[2], float (&tops)[2]) {
#pragma unroll
  for (int i = 0; i < kTile / kSplitStrip; ++i) {
    const float4 bias = vectors.bias(i);
    const float4 scale = vectors.inverse(i);
    float4 head{};
    if constexpr (kIsLast) head = vectors.head(i);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& value = values[8 * i + split_sum(r, k)];
        value = at_least(fmaf(value, in_four(scale, k), in_four(bias, k)), 0.0f);
        if constexpr (kIsLast)
          dots[r] = fmaf(value, in_four(head, k), dots[r]);
        else
          tops[r] = fmaxf(tops[r], value);
      }
  }
}

#endif  // DPIF_HOPPER

}  // namespace dpiframe
