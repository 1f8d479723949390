// From a model to the arguments of the fused MLP kernel: which CTA makes which columns.
#include <algorithm>
#include <span>

#include "common/check.h"
#include "kernels/fused/mlp/fused_mlp.h"

namespace dpiframe {
namespace {

int num_extras_of(const FusedMlpShape& shape) {
  return shape.num_shifts + (shape.has_cross ? 1 : 0) + shape.num_fm;
}

int num_fm(const FusedMlpModel& model) {
  int dim = 0;
  for (const DeviceLookupField& field : model.fields)
    if (field.in_fm) dim = static_cast<int>(field.dim);
  return dim;
}

FusedMlpShape shape_of(const FusedMlpModel& model) {
  FusedMlpShape shape{
      {}, {}, static_cast<int>(model.shifts.size()), model.has_cross, num_fm(model), model.num_ids,
      0};
  for (const DeviceLookupField& field : model.fields) {
    shape.dims.push_back(field.dim);
    shape.max_rows = std::max(shape.max_rows, field.rows);
  }
  for (const LinearLayer& layer : model.layers) shape.widths.push_back(layer.n);
  if (!shape.widths.empty()) shape.widths[0] -= shape.num_shifts + (model.has_cross ? 1 : 0);
  return shape;
}

// The first layer with FM's sums as further extras: ones where a field has that column.
LinearLayer with_fm(const FusedMlpModel& model) {
  LinearLayer layer = model.layers[0];
  const std::size_t own = layer.w.size();
  layer.n += num_fm(model);
  layer.w.resize(static_cast<std::size_t>(layer.n) * layer.k);
  if (!layer.bias.empty()) layer.bias.resize(layer.n);
  for (const DeviceLookupField& field : model.fields)
    for (std::int64_t d = 0; field.in_fm && d < field.dim; ++d)
      layer.w[own + d * layer.k + field.out_column + d] = 1.0f;
  return layer;
}

}  // namespace

bool fused_mlp_fits(const FusedMlpShape& shape) {
  const auto num_layers = static_cast<int>(shape.widths.size());
  const int num_extras = num_extras_of(shape);
  if (num_layers < 1 || num_layers > kMaxLayers || shape.num_shifts > kMaxShifts ||
      num_extras > kMaxExtras || !gather_fits(shape.dims, shape.num_ids, shape.max_rows))
    return false;
  const int tile = quarter_tile(shape.widths, num_extras);
  if (tile == 0) return false;
  // Both CTAs must have rows to gather, and the weights two stages.
  const std::vector<int> slices = slice_chunks(shape.dims);
  const int chunks[] = {x_chunks_of(slices, 0), x_chunks_of(slices, 1)};
  return std::min(chunks[0], chunks[1]) > 0 &&
         fused_mlp_smem(tile, num_layers, chunks[0] + chunks[1], num_extras).stages >= 2;
}

double fused_mlp_microseconds(const FusedMlpShape& shape, std::int64_t samples) {
  constexpr double kOnce = 6.76, kLayer = 1.41;
  constexpr double kLatency = 0.42;  // until a CTA's weights that are on their way have come
  constexpr double kSlice = 19.6e-3;
  constexpr double kFm = 1.44, kCross = 0.96;
  constexpr double kWave = 0.75;  // all CTAs at once, not a few
  const int num_extras = num_extras_of(shape);
  const int tile = quarter_tile(shape.widths, num_extras);
  const std::vector<int> slices = slice_chunks(shape.dims);
  const int x_chunks = x_chunks_of(slices, 0) + x_chunks_of(slices, 1);
  const auto num_layers = static_cast<int>(shape.widths.size());
  const int steps = (x_chunks + (num_layers - 1) * output_chunks(tile)) / 2;
  const int stages = fused_mlp_smem(tile, num_layers, x_chunks, num_extras).stages;
  const int bytes_ahead = (stages - 1) * stage_steps(tile) * weight_step_bytes(tile);
  return kOnce + kLayer * num_layers + steps * weight_step_bytes(tile) * kLatency / bytes_ahead +
         kSlice * static_cast<double>(slices.size()) + (shape.num_fm > 0 ? kFm : 0) +
         (shape.has_cross ? kCross : 0) +
         kWave * static_cast<double>(samples) / static_cast<double>(kMaxWaveSamples);
}

FusedMlpPlan plan_fused_mlp(const FusedMlpModel& model, DataType type) {
  const FusedMlpShape shape = shape_of(model);
  DPIF_CHECK(type != DataType::kFloat && fused_mlp_fits(shape),
             "the model does not fit one kernel");
  for (const DeviceLookupField& field : model.fields)
    DPIF_CHECK(field.dim == 0 || field.in_fm == (shape.num_fm > 0),
               "fields with vectors must all be in FM, or none");
  FusedMlpPlan plan{};
  FusedMlpParams& a = plan.params;
  const int num_extras = num_extras_of(shape);
  a.num_shifts = shape.num_shifts;
  a.has_cross = shape.has_cross ? 1 : 0;
  a.has_fm = shape.num_fm > 0 ? 1 : 0;
  std::ranges::copy(model.shifts, a.shifts);
  a.tile = quarter_tile(shape.widths, num_extras);
  a.num_layers = static_cast<int>(shape.widths.size());
  std::ranges::copy(shape.widths, a.widths);
  for (int quarter = 0, placed = 0; quarter < 4; ++quarter) {
    a.first_extra[quarter] = placed;
    placed += std::min(num_extras - placed, a.tile - quarter_width(a.widths[0], quarter));
    a.first_extra[quarter + 1] = placed;
  }
  a.report = model.report;
  a.num_report = model.num_report;
  a.bias = model.bias;
  plan.gather = plan_gather(model.fields, type, a);
  std::vector<LinearLayer> layers{with_fm(model)};
  layers.insert(layers.end(), model.layers.begin() + 1, model.layers.end());
  plan.weights = pack_weights(type, a, plan.gather.x_columns, layers);
  plan.vectors = pack_vectors(a, layers, model.head);
  return plan;
}

std::shared_ptr<FusedMlp> make_fused_mlp(const FusedMlpModel& model, DataType type) {
  FusedMlpPlan plan = plan_fused_mlp(model, type);
  const std::vector<unsigned> tickets{0};
  DeviceArrays memory(
      {std::as_bytes(std::span(plan.weights)), std::as_bytes(std::span(plan.vectors)),
       std::as_bytes(std::span(plan.gather.slices)), std::as_bytes(std::span(tickets))});
  plan.params.weights = memory.at(0);
  plan.params.vectors = static_cast<const float*>(memory.at(1));
  plan.params.slices = static_cast<const FieldSlice*>(memory.at(2));
  plan.params.tickets = static_cast<unsigned*>(memory.at(3));
  return std::make_shared<FusedMlp>(fused_mlp_kernel(type, plan.params), plan.params,
                                    std::move(memory));
}

}  // namespace dpiframe
