// Beside the products of the one-kernel forward pass for float32, by one warp of a block: half of a
// tile's rows are scored, their ids checked, their wide sums made; the next tile's rows of tables
// are brought to L2.
#pragma once

#include "kernels/fused/cross_fp16x3/gather.cuh"
#include "kernels/fused/report_bad_ids.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

constexpr int kSplitValueBytes = 4 * 32 * 4;

struct SplitScores {
  const BatchMemory& inputs;
  const ForwardSplitArguments& a;
  const SplitPlaces& places;
  int rank;
  int lane = threadIdx.x % 32;

  // The lane's row.
  __device__ std::int64_t row_of(int tile) const {
    return std::int64_t{tile} * kForwardRows + rank * 32 + lane;
  }
  // Counts its bad ids. Returns its wide sum.
  __device__ float look_over(int tile) const {
    const std::int64_t b = row_of(tile);
    float wide = 0.0f;
#pragma unroll 1
    for (int f = 0; f < a.num_fields && b < inputs.batch; ++f) {
      const ForwardSplitField& field = a.fields[f];
      const std::int64_t id = id_at(inputs, field.ids_row, b);
      if (static_cast<std::uint64_t>(id) >= field.rows) [[unlikely]]
        count_bad(f, b);
      const std::int64_t row = row_for(inputs, id, field.rows, field.oov_row);
      if (row < 0) continue;
      if (field.wide != nullptr) wide += __ldg(field.wide + row);
      for (std::int64_t at = 0; field.table != nullptr && at < field.row_bytes; at += 64)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(field.table + row * field.row_bytes + at));
    }
    __syncwarp();
    return wide;
  }
  __device__ void count_bad(int f, std::int64_t b) const {
    unsigned long long* report = inputs.report + a.report;
    atomicAdd(report + f, 1ull);
    atomicMin(report + a.num_fields, static_cast<unsigned long long>(b) * a.num_fields + f);
  }

  // Once all that belongs to the row is there.
  __device__ void score(int tile, int n, float wide) const {
    barrier_wait(places.to_score(), n & 1);
    if (lane == 0) barrier_expect(places.to_score(), kSplitValueBytes);  // of the next tile
    float sum = a.bias + wide;
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) sum += load_float(places.value(quarter, lane));
    __syncwarp();
    if (lane == 0)
      for (int block = 0; block < 2; ++block) arrive_in(address_in(places.scored(), block));
    const std::int64_t b = row_of(tile);
    if (b < inputs.batch) {
      if (inputs.logits != nullptr) inputs.logits[b] = sum;
      if (inputs.scores != nullptr) inputs.scores[b] = 1.0f / (1.0f + expf(-sum));
    }
    __syncwarp();
  }

  // All tiles of the cluster.
  __device__ void run(const SplitTiles& tiles) const {
    const auto busy = static_cast<unsigned>(min(tiles.end, tiles.stride)) * 2;
    float wide = look_over(tiles.first);
    int n = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride, ++n) {
      const int next = tile + tiles.stride;
      float next_wide = 0.0f;
      if (next < tiles.end)
        next_wide = look_over(next);
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

#endif  // DPIF_HOPPER

}  // namespace dpiframe
