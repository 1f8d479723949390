// From a model with cross layers to the arguments of its one kernel.
#include <algorithm>

#include "common/check.h"
#include "kernels/fused/cross/fused_cross.h"
#include "kernels/fused/weight_layout.h"

namespace dpiframe {
namespace {

int num_columns(const ForwardCrossModel& model) {
  std::int64_t columns = 0;
  for (const DeviceLookupField& field : model.fields) columns += field.dim;
  return static_cast<int>(columns);
}

// A cross level's column at place `place` of a block's two tiles; -1: none.
int cross_column(const ForwardCrossPlan& plan, int block, int place) {
  const ForwardArguments& a = plan.arguments.common;
  const int tile = plan.arguments.form.cross_tile;
  const int all = a.chunks[block] - (a.zero_chunk[block] >= 0 ? 1 : 0);
  const int before = place < tile ? 0 : (all + 1) / 2;
  const int chunk = before + place % tile / 8;
  if (chunk >= (place < tile ? (all + 1) / 2 : all)) return -1;
  return plan.lookup.x_columns[(block == 0 ? 0 : a.chunks[0]) + chunk] + place % 8;
}

// A block's weights of a cross level, in the order of their use, behind those before.
void append_cross(const ForwardCrossPlan& plan, const ForwardLevel& level, DataType type, int block,
                  std::vector<std::uint16_t>& numbers) {
  const ForwardArguments& a = plan.arguments.common;
  for (const int half : {block, 1 - block}) {
    const int first = half == 0 ? 0 : a.chunks[0];
    for (int chunk = first; chunk < first + a.chunks[half]; ++chunk)
      for (int place = 0; place < 2 * plan.arguments.form.cross_tile; ++place) {
        const int row = cross_column(plan, block, place);
        const int column = plan.lookup.x_columns[chunk];
        const bool inside = row >= 0 && column >= 0;
        const auto at = static_cast<std::size_t>(std::max(row, 0)) * level.k + std::max(column, 0);
        for (int i = 0; i < 8; ++i)
          numbers.push_back(forward_bits(type, inside ? level.w[at + i] : 0.0f));
      }
  }
}

// For each block the deep levels' numbers, of which the blocks' follow one another, then the cross
// layers'.
void place_weights(const ForwardCrossModel& model, DataType type, ForwardCrossPlan& plan) {
  const auto deep = forward_weights(type, plan.arguments.common, plan.lookup.x_columns, model.deep);
  const auto half = static_cast<std::ptrdiff_t>(deep.size() / 2);
  for (int block = 0; block < 2; ++block) {
    plan.weights.insert(plan.weights.end(), deep.begin() + block * half,
                        deep.begin() + (block + 1) * half);
    for (const ForwardLevel& level : model.cross)
      append_cross(plan, level, type, block, plan.weights);
  }
  plan.arguments.weight_bytes = static_cast<int>(plan.weights.size());  // a half's bytes
}

// For each block the cross layers' biases, each with those before, and head, then the deep levels'.
void place_vectors(const ForwardCrossModel& model, ForwardCrossPlan& plan) {
  const auto deep = forward_vectors(plan.arguments.common, model.deep, model.deep_head);
  const auto half = static_cast<std::ptrdiff_t>(deep.size() / 2);
  for (int block = 0; block < 2; ++block) {
    const auto append = [&](const std::vector<float>& values) {
      for (int place = 0; place < 2 * plan.arguments.form.cross_tile; ++place) {
        const int column = cross_column(plan, block, place);
        plan.vectors.push_back(column < 0 || values.empty() ? 0.0f : values[column]);
      }
    };
    for (const std::vector<float>& biases : forward_cross_biases(model)) append(biases);
    append(model.cross_head);
    plan.vectors.insert(plan.vectors.end(), deep.begin() + block * half,
                        deep.begin() + (block + 1) * half);
  }
}

}  // namespace

ForwardCrossShape forward_cross_shape(const ForwardCrossModel& model) {
  ForwardCrossShape shape{{}, static_cast<int>(model.cross.size()), {}, model.num_ids, 0};
  for (const DeviceLookupField& field : model.fields) {
    shape.dims.push_back(field.dim);
    shape.most_rows = std::max(shape.most_rows, field.rows);
  }
  for (const ForwardLevel& level : model.deep) shape.columns.push_back(level.n);
  return shape;
}

void check_forward_cross(const ForwardCrossModel& model) {
  const int columns = num_columns(model);
  for (const ForwardLevel& level : model.cross)
    DPIF_CHECK(level.n == columns && level.k == columns, "a cross layer must have ", columns,
               " columns, got ", level.k, " -> ", level.n);
  int k = columns;
  for (const ForwardLevel& level : model.deep) {
    DPIF_CHECK(level.k == k, "a level must read ", k, " columns, got ", level.k);
    k = level.n;
  }
  DPIF_CHECK(static_cast<int>(model.cross_head.size()) == columns &&
                 static_cast<int>(model.deep_head.size()) == k,
             "the heads must have ", columns, " and ", k, " weights, got ", model.cross_head.size(),
             " and ", model.deep_head.size());
}

std::vector<std::vector<float>> forward_cross_biases(const ForwardCrossModel& model) {
  std::vector<std::vector<float>> found;
  std::vector<double> sums(model.cross.front().n, 0.0);
  for (const ForwardLevel& level : model.cross) {
    for (std::size_t row = 0; row < level.bias.size(); ++row) sums[row] += level.bias[row];
    found.emplace_back(sums.begin(), sums.end());
  }
  return found;
}

ForwardCrossPlan plan_forward_cross(const ForwardCrossModel& model, DataType type) {
  DPIF_CHECK(type != DataType::kFloat, "one kernel computes in 16 bits");
  const ForwardCrossShape shape = forward_cross_shape(model);
  DPIF_CHECK(forward_cross_fits(shape), "the model does not fit one kernel");
  check_forward_cross(model);
  ForwardCrossPlan plan{};
  ForwardCrossArguments& a = plan.arguments;
  a.form = forward_cross_form(shape);
  a.shared = forward_cross_shared(a.form);
  a.num_pieces = forward_cross_num_pieces(a.form);
  a.common.tile = a.form.deep_tile;
  a.common.num_levels = a.form.num_deep;
  std::ranges::copy(shape.columns, a.common.columns);
  a.common.report = model.report;
  a.common.num_report = model.num_report;
  a.common.bias = model.bias;
  plan.lookup = place_fields(model.fields, type, a.common);
  place_weights(model, type, plan);
  place_vectors(model, plan);
  for (int block = 0; block < 2; ++block) {
    const auto pieces = forward_cross_pieces(a.form, block);
    plan.pieces.insert(plan.pieces.end(), pieces.begin(), pieces.end());
  }
  return plan;
}

}  // namespace dpiframe
