#include "kernels/fused/cross/smem_layout.h"

#include <algorithm>

namespace dpiframe {
namespace {

struct Range {
  int begin;
  int end;

  bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
};

// Where a product's weights may go while its operands are alive and nothing of its output is.
struct Room {
  Range all;
  Range late;     // free once ..
  int last_user;  // .. this stage is consumed, and all products before with it
};

// first_stages: of each product before this one, and of this one.
Room room_of(const FusedCrossTiling& tiling, int number, const std::vector<int>& first_stages) {
  const FusedCrossSmemLayout s = fused_cross_smem(tiling);
  const FusedCrossProduct product = fused_cross_product(tiling, number);
  const Range none{0, 0};
  if (!product.is_cross)  // beside x_0, and h_l where there is one
    return {{s.weights, product.layer == 0 ? s.slices : s.h}, none, -1};
  if (product.layer == 0)  // beside x_0; the last deep layer has read h_l
    return {{s.weights, s.slices}, {s.h, s.slices}, first_stages[number] - 1};
  // Beside x_l; the first cross layer was the last to read x_0.
  return {{0, s.x}, {0, s.weights}, first_stages[tiling.num_deep + 1] - 1};
}

// The stage whose consumption frees `range`: stages are consumed in order, so those before it are
// consumed then, too.
int freed_by(const Range& range, const Room& room, const std::vector<CrossWeightStage>& stages) {
  int last = range.overlaps(room.late) ? room.last_user : -1;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto begin = static_cast<int>(stages[i].offset);
    if (range.overlaps({begin, begin + stages[i].bytes}))
      last = std::max(last, static_cast<int>(i));
  }
  return last;
}

}  // namespace

FusedCrossProduct fused_cross_product(const FusedCrossTiling& tiling, int number) {
  FusedCrossProduct product{};
  product.is_cross = number >= tiling.num_deep;
  product.layer = product.is_cross ? number - tiling.num_deep : number;
  product.tile = product.is_cross ? tiling.cross_tile : tiling.deep_tile;
  for (int half = 0; half < 2; ++half)
    product.steps[half] = product.is_cross || product.layer == 0
                              ? tiling.x_chunks[half] / 2
                              : output_chunks(tiling.deep_tile) / 2 / 2;
  return product;
}

int fused_cross_num_stages(const FusedCrossTiling& tiling) {
  int stages = 0;
  for (int number = 0; number < tiling.num_deep + tiling.num_cross; ++number) {
    const FusedCrossProduct product = fused_cross_product(tiling, number);
    const int most = cross_stage_steps(product.tile);
    for (const int steps : product.steps) stages += (steps + most - 1) / most;
  }
  return stages;
}

int fused_cross_vector_floats(const FusedCrossTiling& tiling) {
  return (tiling.num_cross + 1) * 2 * tiling.cross_tile +
         (tiling.num_deep + 1) * 2 * tiling.deep_tile;
}

FusedCrossSmemLayout fused_cross_smem(const FusedCrossTiling& tiling) {
  const int x = (tiling.x_chunks[0] + tiling.x_chunks[1]) * kChunkStride;
  const int h = tiling.num_deep > 1 ? output_chunks(tiling.deep_tile) * kChunkStride : 0;
  const int slice_bytes = kMaxFieldSlices / 2 * static_cast<int>(sizeof(FieldSlice));
  const int vector_bytes = fused_cross_vector_floats(tiling) * 4;
  const int stage_bytes =
      fused_cross_num_stages(tiling) * static_cast<int>(sizeof(CrossWeightStage));
  const int mbarrier_bytes = kMbarrierBytes<FusedCrossBarriers::kHalfWritten>;
  const int others = slice_bytes + vector_bytes + stage_bytes + 2 * 4 * 32 * 4 + mbarrier_bytes;
  FusedCrossSmemLayout s{};
  s.slices = (kMaxSmemBytes - others) / 128 * 128;
  s.weights = (x + 127) / 128 * 128;
  s.x = s.slices - std::max(tiling.num_cross > 1 ? x : 0, h);
  s.h = s.slices - h;
  s.vectors = s.slices + slice_bytes;
  s.stages = s.vectors + vector_bytes;
  s.wide_sums = s.stages + stage_bytes;
  s.dots = s.wide_sums + 4 * 32 * 4;
  s.barriers = s.dots + 4 * 32 * 4;
  s.bytes = s.barriers + mbarrier_bytes;
  return s;
}

std::vector<CrossWeightStage> fused_cross_stages(const FusedCrossTiling& tiling, int rank) {
  std::vector<CrossWeightStage> stages;
  std::vector<int> first_stages;
  int source = 0;
  for (int number = 0; number < tiling.num_deep + tiling.num_cross; ++number) {
    first_stages.push_back(static_cast<int>(stages.size()));
    const FusedCrossProduct product = fused_cross_product(tiling, number);
    const Room room = room_of(tiling, number, first_stages);
    const int step_bytes = weight_step_bytes(product.tile);
    const int most = cross_stage_steps(product.tile);
    const int slots = (room.all.end - room.all.begin) / (most * step_bytes);
    if (slots < 2) return {};
    for (const int half : {rank, 1 - rank})
      for (int step = 0; step < product.steps[half]; step += most) {
        const int bytes = std::min(most, product.steps[half] - step) * step_bytes;
        int best = 0;
        int wait = static_cast<int>(stages.size());
        for (int i = 0; i < slots; ++i) {
          const int begin = room.all.begin + i * most * step_bytes;
          const int last = freed_by({begin, begin + bytes}, room, stages);
          if (last >= wait) continue;
          wait = last;
          best = begin;
        }
        stages.push_back(
            {static_cast<std::uint32_t>(source), static_cast<std::uint32_t>(best), bytes, wait});
        source += bytes;
      }
  }
  return stages;
}

}  // namespace dpiframe
