// Beside the products of the fused FP16x3 cross kernel, by one warp of a CTA: half of a tile's
// samples are scored, their ids checked, their wide sums made; the next tile's embedding rows are
// brought to L2.
#pragma once

#include "kernels/fused/cross_fp16x3/gather.cuh"
#include "kernels/fused/gather_id.cuh"
#include "kernels/fused/score.cuh"

namespace dpiframe {

constexpr int kScoreBytes = 4 * 32 * 4;

struct Fp16x3Scorer {
  using B = FusedCrossFp16x3Barriers;

  const BatchMemory& inputs;
  const FusedCrossFp16x3Params& a;
  const FusedCrossFp16x3Smem& smem;
  int rank;
  int lane = threadIdx.x % 32;

  // The lane's sample.
  __device__ std::int64_t sample_of(int tile) const {
    return std::int64_t{tile} * kTileSamples + rank * 32 + lane;
  }
  // Counts its bad ids, prefetches its embedding rows. Returns its wide sum.
  __device__ float check_ids(int tile) const {
    const std::int64_t b = sample_of(tile);
    float wide = 0.0f;
#pragma unroll 1
    for (int f = 0; f < a.num_fields && b < inputs.batch; ++f) {
      const Fp16x3Field& field = a.fields[f];
      const std::int64_t id = load_id(inputs, field.ids_row, b);
      if (static_cast<std::uint64_t>(id) >= field.rows) [[unlikely]]
        count_bad_id(inputs.report + a.report, a.num_fields, f, b);
      const std::int64_t row = row_for(inputs, id, field.rows, field.oov_row);
      if (row < 0) continue;
      if (field.wide != nullptr) wide += __ldg(field.wide + row);
      for (std::int64_t at = 0; field.table != nullptr && at < field.row_bytes; at += 64)
        prefetch_l2(field.table + row * field.row_bytes + at);
    }
    __syncwarp();
    return wide;
  }

  // Once all that belongs to the sample is there.
  __device__ void score(int tile, int n, float wide) const {
    mbarrier_wait(smem.barrier<B::kScoreFull>(), n & 1);
    if (lane == 0)
      mbarrier_arrive_expect_tx(smem.barrier<B::kScoreFull>(), kScoreBytes);  // of the next tile
    float sum = a.bias + wide;
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) sum += ld_shared_f32(smem.value(quarter, lane));
    __syncwarp();
    if (lane == 0)
      for (int cta = 0; cta < 2; ++cta)
        mbarrier_arrive_remote(mapa(smem.barrier<B::kScored>(), cta));
    const std::int64_t b = sample_of(tile);
    write_score(inputs, b, sum);
    __syncwarp();
  }

  // All tiles of the cluster.
  __device__ void run(const Fp16x3TileScheduler& tiles) const {
    const unsigned busy = tiles.num_busy_ctas();
    float wide = check_ids(tiles.first);
    int n = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride, ++n) {
      const int next = tile + tiles.stride;
      float next_wide = 0.0f;
      if (next < tiles.end)
        next_wide = check_ids(next);
      else  // all ids are counted
        report_bad_ids(inputs, a.tickets, a.num_report, busy);
      __syncwarp();
      score(tile, n, wide);
      wide = next_wide;
    }
    if (lane == 0 && inputs.completion.flag != nullptr) signal_cta_done(inputs.completion, busy);
    __syncwarp();
  }
};

}  // namespace dpiframe
