// From a model to the arguments of its one kernel: who gathers which fields, who makes which
// columns.
#include <algorithm>

#include "common/check.h"
#include "kernels/forward.h"
#include "kernels/forward_weights.h"

namespace dpiframe {
namespace {

constexpr int kPiece = 8;  // columns

int num_fm(const ForwardModel& model) {
  int dim = 0;
  for (const DeviceLookupField& field : model.fields)
    if (field.in_fm) dim = static_cast<int>(field.dim);
  return dim;
}

ForwardShape shape_of(const ForwardModel& model) {
  ForwardShape shape{
      {}, {}, static_cast<int>(model.shifts.size()), model.has_cross, num_fm(model), model.num_ids};
  for (const DeviceLookupField& field : model.fields) shape.dims.push_back(field.dim);
  for (const ForwardLevel& level : model.levels) shape.columns.push_back(level.n);
  if (!shape.columns.empty()) shape.columns[0] -= shape.num_shifts + (model.has_cross ? 1 : 0);
  return shape;
}

// The fields by 16 columns, and which column of x0 each part begins at.
std::vector<int> place_fields(const ForwardModel& model, DataType type, ForwardPlan& plan) {
  std::vector<int> columns;
  for (std::size_t slot = 0; slot < model.fields.size(); ++slot) {
    const DeviceLookupField& field = model.fields[slot];
    int piece = 0;
    for (const int pieces : forward_parts({field.dim})) {
      plan.arguments.ids_rows[columns.size()] = static_cast<std::uint16_t>(field.ids_row);
      columns.push_back(static_cast<int>(field.out_column) + piece * kPiece);
      const bool first = piece == 0;
      plan.fields.push_back(
          {static_cast<const char*>(field.table) + kPiece * bytes_of(type) * piece,
           first ? field.wide : nullptr, field.rows, field.oov_row,
           static_cast<std::uint32_t>(field.dim * bytes_of(type)),
           first ? static_cast<std::int32_t>(slot) : -1, 0, static_cast<std::uint8_t>(pieces),
           field.in_fm});
      piece += pieces;
    }
  }
  return columns;
}

// Halves the fields between the blocks and gives each its chunks.
void place_chunks(const std::vector<int>& columns, ForwardPlan& plan) {
  ForwardArguments& a = plan.arguments;
  const auto total = static_cast<int>(columns.size());
  a.fields_end[0] = (total + 1) / 2;
  a.fields_end[1] = total;
  for (int block = 0, f = 0; block < 2; ++block) {
    const std::size_t first = plan.x_columns.size();
    for (; f < a.fields_end[block]; ++f) {
      plan.fields[f].chunk = static_cast<std::uint16_t>(plan.x_columns.size());
      for (int piece = 0; piece < plan.fields[f].pieces; ++piece)
        plan.x_columns.push_back(columns[f] + piece * kPiece);
    }
    a.zero_chunk[block] = -1;
    if ((plan.x_columns.size() - first) % 2 != 0) {
      a.zero_chunk[block] = static_cast<int>(plan.x_columns.size());
      plan.x_columns.push_back(-1);
    }
    a.chunks[block] = static_cast<int>(plan.x_columns.size() - first);
  }
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
  std::copy(model.shifts.begin(), model.shifts.end(), a.shifts);
  a.tile = forward_tile(shape.columns, num_extras);
  a.num_levels = static_cast<int>(shape.columns.size());
  std::copy(shape.columns.begin(), shape.columns.end(), a.columns);
  place_extras(num_extras, a);
  a.report = model.report;
  a.num_report = model.num_report;
  a.num_slots = static_cast<int>(model.fields.size());
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
  ForwardPlan plan{};
  place_levels(model, shape, plan.arguments);
  place_chunks(place_fields(model, type, plan), plan);
  std::vector<ForwardLevel> levels{with_fm(model)};
  levels.insert(levels.end(), model.levels.begin() + 1, model.levels.end());
  plan.weights = forward_weights(type, plan.arguments, plan.x_columns, levels);
  plan.vectors = forward_vectors(plan.arguments, levels, model.head);
  return plan;
}

}  // namespace dpiframe
