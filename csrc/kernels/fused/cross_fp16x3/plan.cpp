// From a float32 model with cross layers to the arguments of its one kernel.
#include <algorithm>
#include <bit>
#include <cmath>

#include "common/check.h"
#include "kernels/fused/cross_fp16x3/fused_cross_fp16x3.h"
#include "kernels/fused/weight_layout.h"

namespace dpiframe {
namespace {

// A level's weights as two float16 each, every row times a power of two.
struct SplitWeights {
  std::vector<std::uint16_t> large;  // [n, k]
  std::vector<std::uint16_t> small;
  std::vector<float> inverses;  // [n]
};

// The exponent bits of the largest number of a row; at least 16, so that the factor is a number.
std::uint32_t largest_exponent(const float* row, int k) {
  std::uint32_t exponent = 16;
  for (int c = 0; c < k; ++c)
    exponent = std::max(exponent, std::bit_cast<std::uint32_t>(std::fabs(row[c])) >> 23);
  return exponent;
}

// Of each row of a level.
std::vector<std::uint32_t> exponents_of(const ForwardLevel& level) {
  std::vector<std::uint32_t> exponents;
  for (int row = 0; row < level.n; ++row)
    exponents.push_back(
        largest_exponent(level.w.data() + static_cast<std::size_t>(row) * level.k, level.k));
  return exponents;
}

// As split_kernel (linear_prepare.cu): numbers of 2^(exponent - 127) come into [2^14, 2^15).
SplitWeights split(const ForwardLevel& level, const std::vector<std::uint32_t>& exponents) {
  SplitWeights found;
  found.large.reserve(level.w.size());
  found.small.reserve(level.w.size());
  for (int row = 0; row < level.n; ++row) {
    const float* w = level.w.data() + static_cast<std::size_t>(row) * level.k;
    const std::uint32_t exponent = exponents[row];
    const auto factor = std::bit_cast<float>((127 + 14 + 127 - exponent) << 23);
    found.inverses.push_back(std::bit_cast<float>((exponent - 14) << 23));
    for (int c = 0; c < level.k; ++c) {
      const float value = w[c] * factor;
      found.large.push_back(forward_bits(DataType::kHalf, value));
      found.small.push_back(
          forward_bits(DataType::kHalf, value - forward_half(found.large.back())));
    }
  }
  return found;
}

// A level's column at `place` of a block's two tiles; -1: none.
int column_at(const ForwardSplitProduct& product, int n, int block, int place) {
  const int quarter = block * 2 + place / product.tile;
  const int own = place % product.tile;
  if (own / kSplitStrip >= forward_split_count(product.out_strips, quarter)) return -1;
  const int column = forward_split_first(product.out_strips, quarter) * kSplitStrip + own;
  return column < n ? column : -1;
}

// 16 columns of k for one block: the bits of `values` [n, k].
void append_piece(const ForwardSplitProduct& product, const ForwardLevel& level, int block,
                  int strip, const std::vector<std::uint16_t>& values,
                  std::vector<std::uint16_t>& weights) {
  for (int chunk = 0; chunk < kSplitStrip; chunk += 8)
    for (int row = 0; row < 2 * product.tile; ++row) {
      const int within = row % kSplitStrip;
      const int place = row - within + forward_split_column(within);
      const int column = column_at(product, level.n, block, place);
      const auto* w = values.data() + static_cast<std::size_t>(std::max(column, 0)) * level.k;
      for (int i = chunk; i < chunk + 8; ++i) {
        const int k = strip * kSplitStrip + forward_split_column(i);
        weights.push_back(column >= 0 && k < level.k ? w[k] : std::uint16_t{0});
      }
    }
}

// One product's weights for one block: the quarters of k that the block made come first.
void append_weights(const ForwardSplitProduct& product, const ForwardLevel& level, int block,
                    const SplitWeights& values, std::vector<std::uint16_t>& weights) {
  for (const int half : {block, 1 - block})
    for (int quarter = 2 * half; quarter < 2 * half + 2; ++quarter)
      for (int strip = forward_split_first(product.in_strips, quarter);
           strip < forward_split_first(product.in_strips, quarter + 1); ++strip) {
        append_piece(product, level, block, strip, values.large, weights);
        append_piece(product, level, block, strip, values.small, weights);
      }
}

// What follows a product, of each of its columns; empty: zeros.
struct SplitLevelVectors {
  std::vector<float> biases;
  std::vector<float> inverses;
  std::vector<float> last;
};

// For one block, as its pieces have them.
void append_vectors(const ForwardSplitProduct& product, const SplitLevelVectors& level, int block,
                    std::vector<float>& vectors) {
  const auto n = static_cast<int>(level.inverses.size());
  const int strips = product.tile / kSplitStrip;
  for (int first = 0; first < strips;) {
    const int end = product.is_cross ? forward_split_strips_end(product.tile, first) : strips;
    for (const auto* values : {&level.biases, &level.inverses, &level.last})
      for (int group = 0; group < 2; ++group)
        for (int c = first * kSplitStrip; c < end * kSplitStrip; ++c) {
          const int column = column_at(product, n, block, group * product.tile + c);
          vectors.push_back(column < 0 || values->empty() ? 0.0f : (*values)[column]);
        }
    first = end;
  }
}

// The exponents that each cross layer's rows are split by. Products of all layers are summed, so
// they go from each layer's powers of two to the next one's, and these may not differ by so much
// that sums overflow: rows below 2^-kApart of the largest of all layers are split as if they were
// that large, and lose bits 17 powers of two below it.
std::vector<std::vector<std::uint32_t>> cross_exponents(const ForwardCrossModel& model) {
  constexpr std::uint32_t kApart = 30;
  std::vector<std::vector<std::uint32_t>> found;
  std::vector<std::uint32_t> largest(model.cross.front().n, 0);
  for (const ForwardLevel& level : model.cross) {
    found.push_back(exponents_of(level));
    for (int row = 0; row < level.n; ++row)
      largest[row] = std::max(largest[row], found.back()[row]);
  }
  for (std::vector<std::uint32_t>& exponents : found)
    for (std::size_t row = 0; row < exponents.size(); ++row)
      exponents[row] = std::max(exponents[row] + kApart, largest[row]) - kApart;
  return found;
}

// From each row's powers of two to those of the next layer.
std::vector<float> ratios(const std::vector<std::uint32_t>& from,
                          const std::vector<std::uint32_t>& to) {
  std::vector<float> found;
  for (std::size_t row = 0; row < from.size(); ++row)
    found.push_back(std::bit_cast<float>((127 + from[row] - to[row]) << 23));
  return found;
}

// For each block, one product behind the other.
void place_levels(const ForwardCrossModel& model, ForwardSplitPlan& plan) {
  const auto exponents = cross_exponents(model);
  const auto biases = forward_cross_biases(model);
  std::vector<std::uint16_t> weights[2];
  std::vector<float> vectors[2];
  for (const ForwardSplitProduct& product : forward_split_products(plan.arguments.form)) {
    const auto& levels = product.is_cross ? model.cross : model.deep;
    const ForwardLevel& level = levels[product.level];
    const bool is_last = product.level + 1 == static_cast<int>(levels.size());
    const auto& head = product.is_cross ? model.cross_head : model.deep_head;
    const SplitWeights values =
        split(level, product.is_cross ? exponents[product.level] : exponents_of(level));
    SplitLevelVectors after{product.is_cross ? biases[product.level] : level.bias, values.inverses,
                            is_last ? head : std::vector<float>{}};
    if (product.is_cross && !is_last)
      after.last = ratios(exponents[product.level], exponents[product.level + 1]);
    for (int block = 0; block < 2; ++block) {
      append_weights(product, level, block, values, weights[block]);
      append_vectors(product, after, block, vectors[block]);
    }
  }
  for (int block = 0; block < 2; ++block) {
    plan.weights.insert(plan.weights.end(), weights[block].begin(), weights[block].end());
    plan.vectors.insert(plan.vectors.end(), vectors[block].begin(), vectors[block].end());
  }
  plan.arguments.weight_bytes = static_cast<int>(plan.weights.size());  // a half's bytes
  plan.arguments.vector_floats = static_cast<int>(plan.vectors.size() / 2);
}

// x0's columns in fours, and as many more as a tile of the last quarter's may reach: of these
// nothing is read, and every id is good.
std::vector<ForwardSplitPart> parts_of(const ForwardCrossModel& model, int x_strips) {
  constexpr int kColumns = 4;
  std::vector<ForwardSplitPart> parts(x_strips * kSplitStrip / kColumns, {nullptr, 0, 0, -1, 0});
  parts.resize(kSplitMaxStrips * kSplitStrip / kColumns, {nullptr, ~0u, 0, -1, 0});
  std::int64_t end = 0;
  for (const DeviceLookupField& field : model.fields) end += field.dim;
  for (const DeviceLookupField& field : model.fields) {
    if (field.dim == 0) continue;
    DPIF_CHECK(field.table != nullptr, "a field of dim ", field.dim, " needs a table");
    DPIF_CHECK(field.out_column >= 0 && field.out_column % kColumns == 0 &&
                   field.out_column <= end - field.dim,
               "a field of dim ", field.dim, " cannot begin at column ", field.out_column, " of ",
               end);
    for (std::int64_t column = 0; column < field.dim; column += kColumns) {
      ForwardSplitPart& part = parts[(field.out_column + column) / kColumns];
      DPIF_CHECK(part.table == nullptr, "two fields have column ", field.out_column + column);
      part = {static_cast<const char*>(field.table) + column * sizeof(float),
              static_cast<std::uint32_t>(field.rows),
              static_cast<std::uint32_t>(field.dim * sizeof(float)), field.oov_row, field.ids_row};
    }
  }
  return parts;
}

std::vector<ForwardSplitField> fields_of(const ForwardCrossModel& model) {
  std::vector<ForwardSplitField> fields;
  for (const DeviceLookupField& field : model.fields)
    fields.push_back({field.wide, field.oov_row, static_cast<std::uint32_t>(field.rows),
                      static_cast<std::int32_t>(field.ids_row),
                      static_cast<const char*>(field.table),
                      static_cast<std::int64_t>(field.dim * sizeof(float))});
  return fields;
}

}  // namespace

ForwardSplitForm forward_split_form_of(const ForwardCrossModel& model) {
  const ForwardCrossShape shape = forward_cross_shape(model);
  const ForwardSplitForm form = forward_split_form(
      {shape.dims, shape.num_cross, shape.columns, shape.num_ids, shape.most_rows});
  DPIF_CHECK(form.num_cross > 0, "the model does not fit one kernel");
  return form;
}

ForwardSplitPlan plan_forward_split(const ForwardCrossModel& model) {
  ForwardSplitPlan plan{};
  ForwardSplitArguments& a = plan.arguments;
  a.form = forward_split_form_of(model);
  check_forward_cross(model);
  a.shared = forward_split_shared(a.form);
  a.report = model.report;
  a.num_report = model.num_report;
  a.num_fields = static_cast<int>(model.fields.size());
  a.scratch_bytes = forward_split_scratch_bytes(a.form);
  a.bias = model.bias;
  plan.parts = parts_of(model, a.form.x_strips);
  for (std::size_t i = 0; i < plan.parts.size(); ++i)
    a.ids_rows[i] = static_cast<std::uint16_t>(plan.parts[i].ids_row);
  plan.fields = fields_of(model);
  place_levels(model, plan);
  plan.pieces = forward_split_pieces(a.form);
  a.num_pieces = static_cast<int>(plan.pieces.size());
  return plan;
}

}  // namespace dpiframe
