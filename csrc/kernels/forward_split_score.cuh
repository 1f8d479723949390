// Beside the products of the one-kernel forward pass for float32, by one warp of a block: its half
// of the fields' ids are checked, their wide sums made, the next tile's rows brought to L2, and
// half of the rows scored.
#pragma once

#include "kernels/forward_end.cuh"
#include "kernels/forward_split_gather.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

constexpr int kSplitValueBytes = 6 * 32 * 4;

struct SplitScores {
  const RunInputs& inputs;
  const ForwardSplitArguments& a;
  const SplitPlaces& places;
  int rank;
  int lane = threadIdx.x % 32;

  // Counts bad ids among the block's fields. Returns their part of a row's wide sum.
  __device__ float look_over(std::int64_t b) const {
    const int half = (a.num_fields + 1) / 2;
    float wide = 0.0f;
    if (b >= inputs.batch) return wide;
#pragma unroll 2
    for (int f = rank * half; f < min(a.num_fields, (rank + 1) * half); ++f) {
      const ForwardSplitField field = a.fields[f];
      const std::int64_t id = id_at(inputs, field.ids_row, b);
      if (static_cast<std::uint64_t>(id) >= field.rows) [[unlikely]]
        count_bad(f, b);
      const std::int64_t row = row_for(inputs, id, field.rows, field.oov_row);
      if (row < 0) continue;
      if (field.wide != nullptr) wide += __ldg(field.wide + row);
      for (std::int64_t at = 0; field.table != nullptr && at < field.row_bytes; at += 64)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(field.table + row * field.row_bytes + at));
    }
    return wide;
  }
  __device__ void look_over(int tile, float (&wide)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      wide[r] = look_over(std::int64_t{tile} * kForwardRows + r * 32 + lane);
    __syncwarp();
  }
  __device__ void count_bad(int f, std::int64_t b) const {
    unsigned long long* report = inputs.report + a.report;
    atomicAdd(report + f, 1ull);
    atomicMin(report + a.num_fields, static_cast<unsigned long long>(b) * a.num_fields + f);
  }

  // The rows that are the block's, once all that belongs to them is there: a row a lane.
  __device__ void score(int tile, int n) const {
    barrier_wait(places.to_score(), n & 1);
    if (lane == 0) barrier_expect(places.to_score(), kSplitValueBytes);  // of the next tile
    float sum = a.bias;
#pragma unroll
    for (int kind = 0; kind < 6; ++kind) sum += load_float(places.value(kind, lane));
    __syncwarp();
    if (lane == 0)
      for (int block = 0; block < 2; ++block) arrive_in(address_in(places.scored(), block));
    const std::int64_t b = std::int64_t{tile} * kForwardRows + rank * 32 + lane;
    if (b < inputs.batch) {
      if (inputs.logits != nullptr) inputs.logits[b] = sum;
      if (inputs.scores != nullptr) inputs.scores[b] = 1.0f / (1.0f + expf(-sum));
    }
    __syncwarp();
  }

  // All tiles of the cluster.
  __device__ void run(const SplitTiles& tiles) const {
    float wide[2];
    look_over(tiles.first, wide);
    int n = 0;
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride, ++n) {
      if (n > 0) barrier_wait(places.scored(), (n - 1) & 1);
#pragma unroll
      for (int block = 0; block < 2; ++block)
        store_in(address_in(places.value(4 + rank, lane), block), wide[block],
                 address_in(places.to_score(), block));
      if (tile + tiles.stride < tiles.end) look_over(tile + tiles.stride, wide);
      score(tile, n);
    }
    const auto busy = static_cast<unsigned>(min(tiles.end, tiles.stride)) * 2;
    report_bad_ids(inputs, a.tickets, a.num_report, busy);
    __syncwarp();
    if (lane == 0 && inputs.end.word != nullptr) tell_end_of_block(inputs.end, busy);
    __syncwarp();
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
