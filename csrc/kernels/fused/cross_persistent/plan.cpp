#include <algorithm>

#include "kernels/fused/cross_persistent/fused_cross_persistent.h"

namespace dpiframe {

FusedCrossPersistentSmemLayout fused_cross_persistent_smem(const FusedCrossTiling& tiling,
                                                           int most_slices) {
  FusedCrossPersistentSmemLayout s{};
  s.panel = (tiling.x_chunks[0] + tiling.x_chunks[1]) * kChunkStride;
  s.vector_bytes = 2 * 2 * std::max(tiling.cross_tile, tiling.deep_tile) * 4;
  const int slice_bytes = most_slices * static_cast<int>(sizeof(FieldSlice));
  const int value_bytes = 2 * 4 * kTileSamples * 4;
  const int mbarrier_bytes = kMbarrierBytes<FusedCrossPersistentBarriers::kAllDone>;
  const int others = 2 * s.vector_bytes + slice_bytes + value_bytes + mbarrier_bytes;
  s.ring = (2 * s.panel + 127) / 128 * 128;
  s.vectors = (kMaxSmemBytes - others) / 128 * 128;
  s.ring_bytes = s.vectors - s.ring;
  s.slices = s.vectors + 2 * s.vector_bytes;
  s.values = s.slices + slice_bytes;
  s.barriers = s.values + value_bytes;
  s.bytes = s.barriers + mbarrier_bytes;
  return s;
}

int fused_cross_persistent_scratch_bytes(const FusedCrossTiling& tiling) {
  return std::max(scratch_x0_offset(tiling, 0, 2, 0), scratch_x0_offset(tiling, 1, 2, 0));
}

// The fused cross kernel's weights, where those of all deep layers come first, in the order of the
// products here: one k-step a stage.
std::vector<WeightStage> fused_cross_persistent_stages(const FusedCrossTiling& tiling,
                                                       int ring_bytes) {
  const int x_steps = persistent_steps(tiling, true);
  const int h_steps = persistent_steps(tiling, false);
  const int deep_bytes = weight_step_bytes(tiling.deep_tile);
  const int cross_bytes = weight_step_bytes(tiling.cross_tile);
  const int all_deep = (x_steps + (tiling.num_deep - 1) * h_steps) * deep_bytes;
  std::vector<WeightStage> stages;
  const auto append = [&](int source, int steps, int bytes) {
    for (int step = 0; step < steps; ++step)
      stages.push_back({static_cast<std::uint32_t>(source + step * bytes), 0, bytes, 0});
  };
  append(0, x_steps, deep_bytes);
  append(all_deep, tiling.num_cross * x_steps, cross_bytes);
  append(x_steps * deep_bytes, (tiling.num_deep - 1) * h_steps, deep_bytes);
  assign_ring_offsets(stages, ring_bytes);
  return stages;
}

int slices_of_cta(const FusedCrossShape& shape) {
  return (static_cast<int>(slice_chunks(shape.dims).size()) + 1) / 2;
}

bool fused_cross_persistent_fits(const FusedCrossTiling& tiling, int most_slices) {
  constexpr int kFewestStages = 4;
  const int h_chunks = output_chunks(tiling.deep_tile) / 2;
  const bool h_has_room =
      tiling.num_deep == 1 || std::min(tiling.x_chunks[0], tiling.x_chunks[1]) >= h_chunks;
  const int stage_bytes = weight_step_bytes(std::max(tiling.cross_tile, tiling.deep_tile));
  return h_has_room && persistent_steps(tiling, true) > kMaxStages &&
         fused_cross_persistent_smem(tiling, most_slices).ring_bytes >= kFewestStages * stage_bytes;
}

std::shared_ptr<FusedCrossPersistent> make_fused_cross_persistent(const FusedCrossModel& model,
                                                                  DataType type,
                                                                  const FusedCross& cross,
                                                                  int multiprocessors,
                                                                  std::span<std::byte> scratch) {
  const FusedCrossTiling& tiling = cross.params().tiling;
  const int most_slices = slices_of_cta(fused_cross_shape(model));
  const int ctas = multiprocessors / 2 * 2;
  const int scratch_bytes = fused_cross_persistent_scratch_bytes(tiling);
  std::int64_t weights = 0;
  for (const auto& layers : {model.cross, model.deep})
    for (const LinearLayer& layer : layers) weights += std::int64_t{layer.n} * layer.k;
  // Steps are faster where more than 15% of the tiles (2 bytes a weight, half of them a CTA) are
  // padding.
  const bool pays = weights * 100 >= std::int64_t{cross.params().weight_bytes} * 85;
  if (!fused_cross_persistent_fits(tiling, most_slices) || !pays ||
      static_cast<std::size_t>(ctas) * scratch_bytes > scratch.size())
    return nullptr;
  const FusedCrossPersistentSmemLayout smem = fused_cross_persistent_smem(tiling, most_slices);
  const auto stages = fused_cross_persistent_stages(tiling, smem.ring_bytes);
  DeviceArrays memory({std::as_bytes(std::span(stages))});
  const FusedCrossPersistentParams params{cross.params().mlp,
                                          tiling,
                                          smem,
                                          static_cast<const WeightStage*>(memory.at(0)),
                                          static_cast<int>(stages.size()),
                                          cross.params().weight_bytes,
                                          fused_cross_vector_floats(tiling),
                                          scratch_bytes,
                                          reinterpret_cast<char*>(scratch.data())};
  return std::make_shared<FusedCrossPersistent>(fused_cross_persistent_kernel(type, params), params,
                                                std::move(memory), ctas);
}

}  // namespace dpiframe
