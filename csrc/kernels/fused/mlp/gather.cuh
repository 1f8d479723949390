// The fused MLP kernel's gather, and FM's squares of what was gathered.
#pragma once

#include "kernels/fused/consumer.cuh"
#include "kernels/fused/gather.cuh"
#include "kernels/fused/mlp/mainloop.cuh"

namespace dpiframe {

// TODO(variant): the form before.
struct BranchingGather : SmemGather {
  __device__ void load_ids(int first, Ids& ids) const {
    const bool is_int64 = inputs.ids_are_int64 != 0;
    const char* base = static_cast<const char*>(inputs.ids) + (sample.b << (is_int64 ? 3 : 2));
    const std::int64_t stride = inputs.ids_stride << (is_int64 ? 3 : 2);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const char* id = base + a.ids_rows[min(first + 2 * u, end - 1)] * stride;
      if (is_int64)
        ids[u] = __ldg(reinterpret_cast<const uint2*>(id));
      else
        ids[u].x = __ldg(reinterpret_cast<const unsigned*>(id));
    }
  }
  __device__ bool is_row(const uint2& id, const FieldSlice& slice) const {
    const bool is_int64 = inputs.ids_are_int64 != 0;
    const std::uint32_t high = is_int64 ? id.y : static_cast<std::uint32_t>(int(id.x) >> 31);
    return high == 0 && id.x < slice.rows;
  }
  __device__ float gather(int first, const Ids& ids) const {
    uint4 values[kInFlight] = {};
    float wides[kInFlight] = {};
    std::uint32_t targets[kInFlight];
    bool any_bad = false;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int f = first + 2 * u;
      const FieldSlice& slice = slices[min(f, end - 1) - begin];
      const std::uint32_t row = ids[u].x;
      const bool present = f < end && sample.in_batch;
      const bool good = present && is_row(ids[u], slice);
      const bool has_chunk = sample.half < slice.num_chunks;
      const char* source = slice.table + std::uint64_t{row} * slice.row_bytes + 16 * sample.half;
      if (good && has_chunk) values[u] = __ldg(reinterpret_cast<const uint4*>(source));
      if (good && slice.wide != nullptr && sample.half == u % 2) wides[u] = __ldg(slice.wide + row);
      targets[u] = f < end && has_chunk ? x + slice.x_offset : 0;
      any_bad = any_bad || (present && !good);
    }
    float wide = 0.0f;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (targets[u] != 0) st_shared_v4(targets[u], values[u]);
      wide += wides[u];
    }
    if (any_bad) [[unlikely]]
      wide += replace_bad(first);
    return wide;
  }
};

__device__ inline void gather_x0(const RunInputs& inputs, const FusedMlpParams& a,
                                 const FusedMlpSmem& smem, int rank, std::int64_t first_sample,
                                 FieldSlice* slices) {
  const GatherSample sample(first_sample, inputs.batch);
  const float wide = gather_half<BranchingGather>(inputs, a, rank, sample, slices, smem.base);
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
