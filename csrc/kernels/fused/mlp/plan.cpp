// From a model to the arguments of its one kernel: who makes which columns.
#include <algorithm>

#include "common/check.h"
#include "kernels/fused/mlp/fused_mlp.h"
#include "kernels/fused/weight_layout.h"

namespace dpiframe {
namespace {

int num_fm(const ForwardModel& model) {
  int dim = 0;
  for (const DeviceLookupField& field : model.fields)
    if (field.in_fm) dim = static_cast<int>(field.dim);
  return dim;
}

ForwardShape shape_of(const ForwardModel& model) {
  ForwardShape shape{
      {}, {}, static_cast<int>(model.shifts.size()), model.has_cross, num_fm(model), model.num_ids,
      0};
  for (const DeviceLookupField& field : model.fields) {
    shape.dims.push_back(field.dim);
    shape.most_rows = std::max(shape.most_rows, field.rows);
  }
  for (const ForwardLevel& level : model.levels) shape.columns.push_back(level.n);
  if (!shape.columns.empty()) shape.columns[0] -= shape.num_shifts + (model.has_cross ? 1 : 0);
  return shape;
}

void place_extras(int num_extras, ForwardArguments& a) {
  for (int quarter = 0, placed = 0; quarter < 4; ++quarter) {
    const int width = forward_first_column(a.columns[0], quarter + 1) -
                      forward_first_column(a.columns[0], quarter);
    a.first_extra[quarter] = placed;
    placed += std::min(num_extras - placed, a.tile - width);
    a.first_extra[quarter + 1] = placed;
  }
}

void place_levels(const ForwardModel& model, const ForwardShape& shape, ForwardArguments& a) {
  const int num_extras = shape.num_shifts + (shape.has_cross ? 1 : 0) + shape.num_fm;
  a.num_shifts = shape.num_shifts;
  a.has_cross = shape.has_cross ? 1 : 0;
  a.has_fm = shape.num_fm > 0 ? 1 : 0;
  std::copy(model.shifts.begin(), model.shifts.end(), a.shifts);
  a.tile = forward_tile(shape.columns, num_extras);
  a.num_levels = static_cast<int>(shape.columns.size());
  std::copy(shape.columns.begin(), shape.columns.end(), a.columns);
  place_extras(num_extras, a);
  a.report = model.report;
  a.num_report = model.num_report;
  a.bias = model.bias;
}

// The first level with FM's sums as further extras: ones where a field has that number.
ForwardLevel with_fm(const ForwardModel& model) {
  ForwardLevel level = model.levels[0];
  const std::size_t own = level.w.size();
  level.n += num_fm(model);
  level.w.resize(static_cast<std::size_t>(level.n) * level.k);
  if (!level.bias.empty()) level.bias.resize(level.n);
  for (const DeviceLookupField& field : model.fields)
    for (std::int64_t d = 0; field.in_fm && d < field.dim; ++d)
      level.w[own + d * level.k + field.out_column + d] = 1.0f;
  return level;
}

}  // namespace

ForwardPlan plan_forward(const ForwardModel& model, DataType type) {
  const ForwardShape shape = shape_of(model);
  DPIF_CHECK(type != DataType::kFloat && forward_fits(shape), "the model does not fit one kernel");
  for (const DeviceLookupField& field : model.fields)
    DPIF_CHECK(field.dim == 0 || field.in_fm == (shape.num_fm > 0),
               "fields with vectors must all be in FM, or none");
  ForwardPlan plan{};
  place_levels(model, shape, plan.arguments);
  plan.lookup = place_fields(model.fields, type, plan.arguments);
  std::vector<ForwardLevel> levels{with_fm(model)};
  levels.insert(levels.end(), model.levels.begin() + 1, model.levels.end());
  plan.weights = forward_weights(type, plan.arguments, plan.lookup.x_columns, levels);
  plan.vectors = forward_vectors(plan.arguments, levels, model.head);
  return plan;
}

}  // namespace dpiframe
