// What the consumer warpgroups of the fused forward kernels share: which numbers a thread has of a
// product's sums, k-steps by wgmma, and 16-bit numbers as pairs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/conversions.cuh"
#include "kernels/fused/layout.h"
#include "kernels/gemm/epilogue.cuh"
#include "ptx/registers.cuh"
#include "ptx/wgmma.cuh"

namespace dpiframe {

constexpr int kConsumerWarps = 8;

// A thread has columns 8 j + first_column() + {0, 1} of its warpgroup's quarter, of samples
// first_sample() and first_sample() + 8: sums 4 j + {0, 1} and 4 j + {2, 3}.
struct ConsumerThread {
  int lane = threadIdx.x % 32;
  int warp = threadIdx.x / 32 % 4;
  int warpgroup = threadIdx.x / 128;

  __device__ int first_column() const { return lane % 4 * 2; }
  __device__ int first_sample() const { return warp * 16 + lane / 4; }
  // From a chunk's start to the thread's first pair of 16-bit numbers; the second is 128 bytes on.
  __device__ int chunk_offset() const { return warp * 256 + lane * 4; }
};

// How many chunks of a product's input either CTA made; those of CTA 0 come first.
struct InputHalves {
  int first;
  int second;

  __device__ int chunks(int rank) const { return rank == 0 ? first : second; }
  __device__ int offset(int rank) const { return rank == 0 ? 0 : first * kChunkStride; }
};

// sums += `kSteps` k-steps of x by w, as one group. Without a branch among them: else the compiler
// cannot tell how many are under way, and a wait for all but the last group waits for that, too.
template <class T, int kTile, int kSteps>
__device__ void mma_steps(std::uint64_t x, std::uint64_t w, bool add, float (&sums)[kTile / 2]) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    Wgmma<kTile>::template ss<T>(sums, x + i * (2 * kChunkStride / 16),
                                 w + i * (weight_step_bytes(kTile) / 16), add || i > 0);
  wgmma_commit();
}

template <class T>
using Pair16 = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

template <class T>
__device__ float2 to_floats(const std::uint32_t& bits) {
  const auto& pair = reinterpret_cast<const Pair16<T>&>(bits);
  return {to_float(pair.x), to_float(pair.y)};
}
template <class T>
__device__ std::uint32_t to_pair_bits(float low, float high) {
  const auto pair = to_pair<Pair16<T>>(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

}  // namespace dpiframe
