// The epilogue of the fused MLP kernel's first layer beside ReLU: its extra columns.
#pragma once

#include "kernels/fused/mlp/mainloop.cuh"
#include "kernels/fused/relu_epilogue.cuh"

namespace dpiframe {

// The thread's four sums of chunk `j` of its quarter.
template <int kTile>
__device__ float4 sums_of_chunk(const float (&sums)[kTile / 2], int j) {
  float4 four{};
#pragma unroll
  for (int i = 0; i < kTile / 8; ++i)
    if (i == j) four = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
  return four;
}

// The first layer's extra columns, to the CTA that scores their sample.
template <int kTile>
__device__ void send_extras(const float (&sums)[kTile / 2], std::uint32_t bias,
                            const FusedMlpParams& a, int rank, const FusedMlpSmem& smem) {
  const ConsumerThread thread;
  const int quarter = rank * 2 + thread.warpgroup;
  const int column = quarter_width(a.widths[0], quarter);
  const int first = a.first_extra[quarter];
  const int count = a.first_extra[quarter + 1] - first;
  const std::uint32_t extras = mapa(smem.base + smem.at.extras, thread.warp / 2);
  const std::uint32_t barrier =
      mapa(smem.barriers().at<FusedMlpBarriers::kScoreFull>(), thread.warp / 2);
#pragma unroll 1
  for (int j = column / 8; 8 * j < column + count; ++j) {
    const float4 four = sums_of_chunk<kTile>(sums, j);
    const float2 add = ld_shared_f32x2(bias + j * 32);
    const float values[] = {four.x + add.x, four.y + add.y, four.z + add.x, four.w + add.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int extra = 8 * j + thread.first_column() + i % 2 - column;
      if (extra < 0 || extra >= count) continue;
      const int sample = thread.first_sample() + i / 2 * 8;
      const int at = sample % 32 * smem.at.extras_stride + first + extra;
      st_async(extras + 4 * at, values[i], barrier);
    }
  }
}

}  // namespace dpiframe
