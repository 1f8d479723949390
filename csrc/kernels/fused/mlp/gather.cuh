// The fused MLP kernel's gather, and FM's squares of what was gathered.
#pragma once

#include "kernels/fused/consumer.cuh"
#include "kernels/fused/gather.cuh"
#include "kernels/fused/mlp/mainloop.cuh"

namespace dpiframe {

__device__ inline void gather_x0(const BatchMemory& inputs, const FusedMlpParams& a,
                                 const FusedMlpSmem& smem, int rank, std::int64_t first_sample,
                                 FieldSlice* slices) {
  const GatherSample sample(first_sample, inputs.batch);
  const float wide = gather_half(inputs, a, rank, sample, slices, smem.base);
  fence_proxy_async_shared();
  cluster_wait();
  if (sample.half == 0)
    smem.send_to_score(smem.at.wide_sums, rank * 2 + threadIdx.x / 128, sample.of_tile, wide);
  mbarrier_arrive(smem.barriers().at<FusedMlpBarriers::kGathered>());
}

template <class T>
__device__ float sum_of_squares(const uint4& chunk) {
  struct Numbers {
    T values[8];
  };
  const auto numbers = __builtin_bit_cast(Numbers, chunk);
  float sum = 0.0f;
#pragma unroll
  for (const T value : numbers.values) sum = fmaf(to_float(value), to_float(value), sum);
  return sum;
}

// FM's squares of the CTA's half of x_0, by one warp.
template <class T>
__device__ void add_squares(const FusedMlpParams& a, const FusedMlpSmem& smem, int rank) {
  const InputHalves halves{a.x_chunks[0], a.x_chunks[1]};
  const int lane = threadIdx.x % 32;
  for (int sample = lane; sample < kTileSamples; sample += 32) {
    const std::uint32_t x = smem.input(0) + halves.offset(rank) + sample * 16;
    float squares = 0.0f;
#pragma unroll 2
    for (int chunk = 0; chunk < halves.chunks(rank); ++chunk)
      squares += sum_of_squares<T>(ld_shared_v4(x + chunk * kChunkStride));
    smem.send_to_score(smem.at.wide_sums, 4 + rank, sample, -0.5f * squares);
  }
  __syncwarp();
  if (lane == 0) mbarrier_arrive(smem.barriers().at<FusedMlpBarriers::kSquared>());
}

}  // namespace dpiframe
