// From a model with cross layers to the arguments of the fused cross kernel.
#include <algorithm>
#include <span>

#include "common/check.h"
#include "kernels/fused/cross/fused_cross.h"

namespace dpiframe {
namespace {

int x_columns_of(const FusedCrossModel& model) {
  std::int64_t columns = 0;
  for (const DeviceLookupField& field : model.fields) columns += field.dim;
  return static_cast<int>(columns);
}

// The narrowest compiled tile for a warpgroup's part of half of x_0's columns; 0: none.
int cross_tile_of(const std::vector<int>& slices) {
  const int chunks = std::max(x_chunks_of(slices, 0), x_chunks_of(slices, 1));
  for (const int tile : {104, 160})
    if ((chunks + 1) / 2 * 8 <= tile) return tile;
  return 0;
}

// A cross layer's column at `column` of a CTA's two tiles; -1: none.
int cross_column(const FusedCrossPlan& plan, int rank, int column) {
  const FusedMlpParams& a = plan.params.mlp;
  const int tile = plan.params.tiling.cross_tile;
  const int all = a.x_chunks[rank] - (a.zero_chunk[rank] >= 0 ? 1 : 0);
  const int before = column < tile ? 0 : (all + 1) / 2;
  const int chunk = before + column % tile / 8;
  if (chunk >= (column < tile ? (all + 1) / 2 : all)) return -1;
  return plan.gather.x_columns[(rank == 0 ? 0 : a.x_chunks[0]) + chunk] + column % 8;
}

// A CTA's weights of a cross layer, in the order of their use.
void append_cross_weights(const FusedCrossPlan& plan, const LinearLayer& layer, DataType type,
                          int rank, std::vector<std::uint16_t>& packed) {
  const FusedMlpParams& a = plan.params.mlp;
  for (const int half : {rank, 1 - rank}) {
    const int first = half == 0 ? 0 : a.x_chunks[0];
    for (int chunk = first; chunk < first + a.x_chunks[half]; ++chunk)
      for (int c = 0; c < 2 * plan.params.tiling.cross_tile; ++c) {
        const int row = cross_column(plan, rank, c);
        const int column = plan.gather.x_columns[chunk];
        const bool is_weight = row >= 0 && column >= 0;
        const auto at = static_cast<std::size_t>(std::max(row, 0)) * layer.k + std::max(column, 0);
        for (int i = 0; i < 8; ++i)
          packed.push_back(to_bits16(type, is_weight ? layer.w[at + i] : 0.0f));
      }
  }
}

// For each CTA: weights of the deep layers, then of the cross layers; biases and head of the cross
// layers, then of the deep layers.
void pack_layers(const FusedCrossModel& model, DataType type, FusedCrossPlan& plan) {
  const auto weights = pack_weights(type, plan.params.mlp, plan.gather.x_columns, model.deep);
  const auto vectors = pack_vectors(plan.params.mlp, model.deep, model.deep_head);
  const auto append_half = [](const auto& from, int rank, auto& to) {
    const auto half = static_cast<std::ptrdiff_t>(from.size() / 2);
    to.insert(to.end(), from.begin() + rank * half, from.begin() + (rank + 1) * half);
  };
  for (int rank = 0; rank < 2; ++rank) {
    append_half(weights, rank, plan.weights);
    for (const LinearLayer& layer : model.cross)
      append_cross_weights(plan, layer, type, rank, plan.weights);
    const auto append_vector = [&](const std::vector<float>& values) {
      for (int c = 0; c < 2 * plan.params.tiling.cross_tile; ++c) {
        const int column = cross_column(plan, rank, c);
        plan.vectors.push_back(column < 0 ? 0.0f : values[column]);
      }
    };
    for (const std::vector<float>& biases : summed_cross_biases(model)) append_vector(biases);
    append_vector(model.cross_head);
    append_half(vectors, rank, plan.vectors);
  }
  plan.params.weight_bytes = static_cast<int>(plan.weights.size());  // two CTAs of two bytes each
}

}  // namespace

FusedCrossShape fused_cross_shape(const FusedCrossModel& model) {
  FusedCrossShape shape{{}, static_cast<int>(model.cross.size()), {}, model.num_ids, 0};
  for (const DeviceLookupField& field : model.fields) {
    shape.dims.push_back(field.dim);
    shape.max_rows = std::max(shape.max_rows, field.rows);
  }
  for (const LinearLayer& layer : model.deep) shape.widths.push_back(layer.n);
  return shape;
}

FusedCrossTiling fused_cross_tiling(const FusedCrossShape& shape) {
  const auto num_deep = static_cast<int>(shape.widths.size());
  if (!gather_fits(shape.dims, shape.num_ids, shape.max_rows) || shape.num_cross < 1 ||
      shape.num_cross > kMaxLayers || num_deep < 1 || num_deep > kMaxLayers ||
      *std::ranges::min_element(shape.widths) < 1)
    return {};
  const std::vector<int> slices = slice_chunks(shape.dims);
  const int deep_tile = quarter_tile(shape.widths, 0);
  const FusedCrossTiling tiling{{x_chunks_of(slices, 0), x_chunks_of(slices, 1)},
                                shape.num_cross,
                                cross_tile_of(slices),
                                num_deep,
                                std::max(deep_tile, 104)};
  const bool has_both = tiling.x_chunks[0] > 0 && tiling.x_chunks[1] > 0;
  return deep_tile > 0 && tiling.cross_tile > 0 && has_both ? tiling : FusedCrossTiling{};
}

bool fused_cross_fits(const FusedCrossShape& shape) {
  const FusedCrossTiling tiling = fused_cross_tiling(shape);
  return tiling.num_cross > 0 && !fused_cross_stages(tiling, 0).empty();
}

void check_fused_cross(const FusedCrossModel& model) {
  const int columns = x_columns_of(model);
  for (const LinearLayer& layer : model.cross)
    DPIF_CHECK(layer.n == columns && layer.k == columns, "a cross layer must have ", columns,
               " columns, got ", layer.k, " -> ", layer.n);
  int k = columns;
  for (const LinearLayer& layer : model.deep) {
    DPIF_CHECK(layer.k == k, "a layer must read ", k, " columns, got ", layer.k);
    k = layer.n;
  }
  DPIF_CHECK(static_cast<int>(model.cross_head.size()) == columns &&
                 static_cast<int>(model.deep_head.size()) == k,
             "the heads must have ", columns, " and ", k, " weights, got ", model.cross_head.size(),
             " and ", model.deep_head.size());
}

std::vector<std::vector<float>> summed_cross_biases(const FusedCrossModel& model) {
  std::vector<std::vector<float>> found;
  std::vector<double> sums(model.cross.front().n, 0.0);
  for (const LinearLayer& layer : model.cross) {
    for (std::size_t row = 0; row < layer.bias.size(); ++row) sums[row] += layer.bias[row];
    found.emplace_back(sums.begin(), sums.end());
  }
  return found;
}

FusedCrossPlan plan_fused_cross(const FusedCrossModel& model, DataType type) {
  DPIF_CHECK(type != DataType::kFloat, "the fused cross kernel computes in 16 bits");
  const FusedCrossShape shape = fused_cross_shape(model);
  DPIF_CHECK(fused_cross_fits(shape), "the model does not fit one kernel");
  check_fused_cross(model);
  FusedCrossPlan plan{};
  FusedCrossParams& a = plan.params;
  a.tiling = fused_cross_tiling(shape);
  a.smem = fused_cross_smem(a.tiling);
  a.num_stages = fused_cross_num_stages(a.tiling);
  a.mlp.tile = a.tiling.deep_tile;
  a.mlp.num_layers = a.tiling.num_deep;
  std::ranges::copy(shape.widths, a.mlp.widths);
  a.mlp.report = model.report;
  a.mlp.num_report = model.num_report;
  a.mlp.bias = model.bias;
  plan.gather = plan_gather(model.fields, type, a.mlp);
  pack_layers(model, type, plan);
  for (int rank = 0; rank < 2; ++rank) {
    const auto stages = fused_cross_stages(a.tiling, rank);
    plan.stages.insert(plan.stages.end(), stages.begin(), stages.end());
  }
  return plan;
}

std::shared_ptr<FusedCross> make_fused_cross(const FusedCrossModel& model, DataType type) {
  FusedCrossPlan plan = plan_fused_cross(model, type);
  const std::vector<unsigned> tickets{0};
  DeviceArrays memory({std::as_bytes(std::span(plan.weights)),
                       std::as_bytes(std::span(plan.vectors)),
                       std::as_bytes(std::span(plan.gather.slices)),
                       std::as_bytes(std::span(plan.stages)), std::as_bytes(std::span(tickets))});
  plan.params.mlp.weights = memory.at(0);
  plan.params.mlp.vectors = static_cast<const float*>(memory.at(1));
  plan.params.mlp.slices = static_cast<const FieldSlice*>(memory.at(2));
  plan.params.stages = static_cast<const CrossWeightStage*>(memory.at(3));
  plan.params.mlp.tickets = static_cast<unsigned*>(memory.at(4));
  return std::make_shared<FusedCross>(fused_cross_kernel(type, plan.params), plan.params,
                                      std::move(memory));
}

}  // namespace dpiframe
