// From a float32 model with cross layers to the arguments of the fused FP16x3 cross kernel.
#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "common/check.h"
#include "kernels/fused/cross_fp16x3/fused_cross_fp16x3.h"

namespace dpiframe {
namespace {

// The narrowest of the kernel's tiles for a quarter of so many strips; 0: none is wide enough.
int tile_of(int strips, std::initializer_list<int> tiles) {
  for (const int tile : tiles)
    if (strip_count(strips, 0) * kStripColumns <= tile) return tile;
  return 0;
}

std::uint32_t source_of(StageSource kind, int offset) {
  return static_cast<std::uint32_t>(kind) << kSourceBits | static_cast<std::uint32_t>(offset);
}

// A cross layer's vectors and x_0; `vectors`: where the former begin.
void append_cross_epilogue(int tile, int vectors, std::vector<WeightStage>& stages) {
  for (int first = 0; first < tile / kStripColumns; first += kEpilogueStrips) {
    const int strips = epilogue_strips_end(tile, first) - first;
    const int bytes = vector_stage_bytes(strips * kStripColumns);
    stages.push_back({source_of(StageSource::kVectors, vectors), 0, bytes, 0});
    vectors += bytes;
    stages.push_back(
        {source_of(StageSource::kX0, first * kX0StripBytes), 0, strips * kX0StripBytes, 0});
  }
}

// h's quarters are where x's of the peer were.
bool h_has_room(const Fp16x3Tiling& tiling) {
  for (int layer = 0; layer + 1 < tiling.num_deep; ++layer)
    for (int quarter = 0; quarter < 4; ++quarter)
      if (strip_count(tiling.h_strips[layer], quarter) >
          strip_count(tiling.x_strips, (quarter + 2) % 4))
        return false;
  return true;
}

// A layer's weights as two float16 each, every row times a power of two.
struct Fp16x3Weights {
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

// Of each row of a layer.
std::vector<std::uint32_t> exponents_of(const LinearLayer& layer) {
  std::vector<std::uint32_t> exponents;
  for (int row = 0; row < layer.n; ++row)
    exponents.push_back(
        largest_exponent(layer.w.data() + static_cast<std::size_t>(row) * layer.k, layer.k));
  return exponents;
}

// As for single products (gemm/prepare_weights.cu): numbers of 2^(exponent - 127) come into
// [2^14, 2^15).
Fp16x3Weights split(const LinearLayer& layer, const std::vector<std::uint32_t>& exponents) {
  Fp16x3Weights found;
  found.large.reserve(layer.w.size());
  found.small.reserve(layer.w.size());
  for (int row = 0; row < layer.n; ++row) {
    const float* w = layer.w.data() + static_cast<std::size_t>(row) * layer.k;
    const std::uint32_t exponent = exponents[row];
    const auto factor = std::bit_cast<float>((127 + 14 + 127 - exponent) << 23);
    found.inverses.push_back(std::bit_cast<float>((exponent - 14) << 23));
    for (int c = 0; c < layer.k; ++c) {
      const float value = w[c] * factor;
      found.large.push_back(to_bits16(DataType::kHalf, value));
      found.small.push_back(to_bits16(DataType::kHalf, value - from_float16(found.large.back())));
    }
  }
  return found;
}

// A layer's column at `padded_column` of a CTA's two tiles; -1: it is padding.
int output_column(const Fp16x3Product& product, int n, int rank, int padded_column) {
  const int quarter = rank * 2 + padded_column / product.tile;
  const int own = padded_column % product.tile;
  if (own / kStripColumns >= strip_count(product.out_strips, quarter)) return -1;
  const int column = first_strip(product.out_strips, quarter) * kStripColumns + own;
  return column < n ? column : -1;
}

// A k-step for one CTA: the bits of `values` [n, k].
void append_step(const Fp16x3Product& product, const LinearLayer& layer, int rank, int strip,
                 const std::vector<std::uint16_t>& values, std::vector<std::uint16_t>& weights) {
  for (int chunk = 0; chunk < kStripColumns; chunk += 8)
    for (int row = 0; row < 2 * product.tile; ++row) {
      const int within = row % kStripColumns;
      const int padded_column = row - within + strip_column(within);
      const int column = output_column(product, layer.n, rank, padded_column);
      const auto* w = values.data() + static_cast<std::size_t>(std::max(column, 0)) * layer.k;
      for (int i = chunk; i < chunk + 8; ++i) {
        const int k = strip * kStripColumns + strip_column(i);
        weights.push_back(column >= 0 && k < layer.k ? w[k] : std::uint16_t{0});
      }
    }
}

// One product's weights for one CTA: the quarters of k that it makes come first.
void append_weights(const Fp16x3Product& product, const LinearLayer& layer, int rank,
                    const Fp16x3Weights& values, std::vector<std::uint16_t>& weights) {
  for (const int half : {rank, 1 - rank})
    for (int quarter = 2 * half; quarter < 2 * half + 2; ++quarter)
      for (int strip = first_strip(product.in_strips, quarter);
           strip < first_strip(product.in_strips, quarter + 1); ++strip) {
        append_step(product, layer, rank, strip, values.large, weights);
        append_step(product, layer, rank, strip, values.small, weights);
      }
}

// What a product's epilogue reads, of each of its columns; empty: zeros.
struct LayerVectors {
  std::vector<float> biases;
  std::vector<float> inverses;
  std::vector<float> last;
};

// For one CTA, as its stages have them.
void append_vectors(const Fp16x3Product& product, const LayerVectors& layer, int rank,
                    std::vector<float>& vectors) {
  const auto n = static_cast<int>(layer.inverses.size());
  const int strips = product.tile / kStripColumns;
  for (int first = 0; first < strips;) {
    const int end = product.is_cross ? epilogue_strips_end(product.tile, first) : strips;
    for (const auto* values : {&layer.biases, &layer.inverses, &layer.last})
      for (int group = 0; group < 2; ++group)
        for (int c = first * kStripColumns; c < end * kStripColumns; ++c) {
          const int column = output_column(product, n, rank, group * product.tile + c);
          vectors.push_back(column < 0 || values->empty() ? 0.0f : (*values)[column]);
        }
    first = end;
  }
}

// The exponents that each cross layer's rows are split by. Products of all layers are summed, so
// they go from each layer's powers of two to the next one's, and these may not differ by so much
// that sums overflow: rows below 2^-kMaxExponentGap of the largest of all layers are split as if
// they were that large, and lose bits 17 powers of two below it.
std::vector<std::vector<std::uint32_t>> cross_exponents(const FusedCrossModel& model) {
  constexpr std::uint32_t kMaxExponentGap = 30;
  std::vector<std::vector<std::uint32_t>> found;
  std::vector<std::uint32_t> largest(model.cross.front().n, 0);
  for (const LinearLayer& layer : model.cross) {
    found.push_back(exponents_of(layer));
    for (int row = 0; row < layer.n; ++row)
      largest[row] = std::max(largest[row], found.back()[row]);
  }
  for (std::vector<std::uint32_t>& exponents : found)
    for (std::size_t row = 0; row < exponents.size(); ++row)
      exponents[row] = std::max(exponents[row] + kMaxExponentGap, largest[row]) - kMaxExponentGap;
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

// For each CTA, one product behind the other.
void pack_layers(const FusedCrossModel& model, FusedCrossFp16x3Plan& plan) {
  const auto exponents = cross_exponents(model);
  const auto biases = summed_cross_biases(model);
  std::vector<std::uint16_t> weights[2];
  std::vector<float> vectors[2];
  for (const Fp16x3Product& product : fp16x3_products(plan.params.tiling)) {
    const auto& layers = product.is_cross ? model.cross : model.deep;
    const LinearLayer& layer = layers[product.layer];
    const bool is_last = product.layer + 1 == static_cast<int>(layers.size());
    const auto& head = product.is_cross ? model.cross_head : model.deep_head;
    const Fp16x3Weights values =
        split(layer, product.is_cross ? exponents[product.layer] : exponents_of(layer));
    LayerVectors after{product.is_cross ? biases[product.layer] : layer.bias, values.inverses,
                       is_last ? head : std::vector<float>{}};
    if (product.is_cross && !is_last)
      after.last = ratios(exponents[product.layer], exponents[product.layer + 1]);
    for (int rank = 0; rank < 2; ++rank) {
      append_weights(product, layer, rank, values, weights[rank]);
      append_vectors(product, after, rank, vectors[rank]);
    }
  }
  for (int rank = 0; rank < 2; ++rank) {
    plan.weights.insert(plan.weights.end(), weights[rank].begin(), weights[rank].end());
    plan.vectors.insert(plan.vectors.end(), vectors[rank].begin(), vectors[rank].end());
  }
  plan.params.weight_bytes = static_cast<int>(plan.weights.size());  // a half's bytes
  plan.params.vector_floats = static_cast<int>(plan.vectors.size() / 2);
}

// x_0's columns in fours, and as many more as a tile of the last quarter may reach: of these
// nothing is read, and every id is good.
std::vector<Fp16x3ColumnGroup> groups_of(const FusedCrossModel& model, int x_strips) {
  constexpr int kColumns = 4;
  std::vector<Fp16x3ColumnGroup> groups(x_strips * kStripColumns / kColumns,
                                        {nullptr, 0, 0, -1, 0});
  groups.resize(kMaxStrips * kStripColumns / kColumns, {nullptr, ~0u, 0, -1, 0});
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
      Fp16x3ColumnGroup& group = groups[(field.out_column + column) / kColumns];
      DPIF_CHECK(group.table == nullptr, "two fields have column ", field.out_column + column);
      group = {static_cast<const char*>(field.table) + column * sizeof(float),
               static_cast<std::uint32_t>(field.rows),
               static_cast<std::uint32_t>(field.dim * sizeof(float)), field.oov_row, field.ids_row};
    }
  }
  return groups;
}

std::vector<Fp16x3Field> fields_of(const FusedCrossModel& model) {
  std::vector<Fp16x3Field> fields;
  for (const DeviceLookupField& field : model.fields)
    fields.push_back({field.wide, field.oov_row, static_cast<std::uint32_t>(field.rows),
                      static_cast<std::int32_t>(field.ids_row),
                      static_cast<const char*>(field.table),
                      static_cast<std::int64_t>(field.dim * sizeof(float))});
  return fields;
}

}  // namespace

std::vector<Fp16x3Product> fp16x3_products(const Fp16x3Tiling& tiling) {
  std::vector<Fp16x3Product> products;
  const auto deep = [&](int layer) {
    const int in_strips = layer == 0 ? tiling.x_strips : tiling.h_strips[layer - 1];
    products.push_back({false, layer, tiling.deep_tile, in_strips, tiling.h_strips[layer]});
  };
  deep(0);
  for (int layer = 0; layer < tiling.num_cross; ++layer)
    products.push_back({true, layer, tiling.cross_tile, tiling.x_strips, tiling.x_strips});
  for (int layer = 1; layer < tiling.num_deep; ++layer) deep(layer);
  return products;
}

std::vector<WeightStage> fused_cross_fp16x3_stages(const Fp16x3Tiling& tiling) {
  std::vector<WeightStage> stages;
  int weights = 0;
  int vectors = 0;
  for (const Fp16x3Product& product : fp16x3_products(tiling)) {
    const int parts = parts_a_stage(product.tile);
    const int bytes = parts * weight_part_bytes(product.tile);
    for (int i = 0; i < 2 * product.in_strips / parts; ++i, weights += bytes)
      stages.push_back({source_of(StageSource::kWeights, weights), 0, bytes, 0});
    const int vector_bytes = vector_stage_bytes(product.tile);
    if (product.is_cross)
      append_cross_epilogue(product.tile, vectors, stages);
    else
      stages.push_back({source_of(StageSource::kVectors, vectors), 0, vector_bytes, 0});
    vectors += vector_bytes;
  }
  assign_ring_offsets(stages, fused_cross_fp16x3_smem(tiling).ring_bytes);
  return stages;
}

FusedCrossFp16x3SmemLayout fused_cross_fp16x3_smem(const Fp16x3Tiling& tiling) {
  FusedCrossFp16x3SmemLayout s{};
  s.ring = quarter_offset(tiling.x_strips, 4);
  s.barriers = kMaxSmemBytes - kMbarrierBytes<FusedCrossFp16x3Barriers::kPeerHStored>;
  s.values = s.barriers - 4 * 32 * 4;
  s.ring_bytes = s.values - s.ring;
  s.bytes = kMaxSmemBytes;
  return s;
}

Fp16x3Tiling fused_cross_fp16x3_tiling(const FusedCrossShape& shape) {
  constexpr int kFewestStages = 4;
  std::int64_t columns = 0;
  for (const std::int64_t dim : shape.dims) {
    if (dim < 0 || dim > 4 * 160 || dim % 4 != 0) return {};
    columns += dim;
  }
  const auto num_deep = static_cast<int>(shape.widths.size());
  const bool is_counted = shape.num_cross >= 1 && shape.num_cross <= kMaxLayers && num_deep >= 1 &&
                          num_deep <= kMaxLayers;
  if (!is_counted || columns < 4 * kStripColumns || columns > 4 * 160 ||
      shape.num_ids > kMaxIdsRows || shape.max_rows >= std::int64_t{1} << 32)
    return {};
  Fp16x3Tiling tiling{};
  tiling.x_strips = static_cast<int>((columns + kStripColumns - 1) / kStripColumns);
  tiling.num_cross = shape.num_cross;
  tiling.num_deep = num_deep;
  tiling.cross_tile = tile_of(tiling.x_strips, {112, 160});
  int most = 0;
  for (int layer = 0; layer < num_deep; ++layer) {
    if (shape.widths[layer] < 1 || shape.widths[layer] > 512) return {};
    tiling.h_strips[layer] = (shape.widths[layer] + kStripColumns - 1) / kStripColumns;
    most = std::max(most, tiling.h_strips[layer]);
  }
  tiling.deep_tile = tile_of(most, {112, 128});
  const bool fits =
      tiling.cross_tile > 0 && tiling.deep_tile > 0 && h_has_room(tiling) &&
      fused_cross_fp16x3_smem(tiling).ring_bytes >=
          kFewestStages *
              std::max(weight_part_bytes(tiling.cross_tile) * parts_a_stage(tiling.cross_tile),
                       weight_part_bytes(tiling.deep_tile) * parts_a_stage(tiling.deep_tile));
  return fits ? tiling : Fp16x3Tiling{};
}

FusedCrossFp16x3Plan plan_fused_cross_fp16x3(const FusedCrossModel& model) {
  FusedCrossFp16x3Plan plan{};
  FusedCrossFp16x3Params& a = plan.params;
  a.tiling = fused_cross_fp16x3_tiling(fused_cross_shape(model));
  DPIF_CHECK(a.tiling.num_cross > 0, "the model does not fit one kernel");
  check_fused_cross(model);
  a.smem = fused_cross_fp16x3_smem(a.tiling);
  a.report = model.report;
  a.num_report = model.num_report;
  a.num_fields = static_cast<int>(model.fields.size());
  a.scratch_bytes = fused_cross_fp16x3_scratch_bytes(a.tiling);
  a.bias = model.bias;
  plan.groups = groups_of(model, a.tiling.x_strips);
  for (std::size_t i = 0; i < plan.groups.size(); ++i)
    a.ids_rows[i] = static_cast<std::uint16_t>(plan.groups[i].ids_row);
  plan.fields = fields_of(model);
  pack_layers(model, plan);
  plan.stages = fused_cross_fp16x3_stages(a.tiling);
  a.num_stages = static_cast<int>(plan.stages.size());
  return plan;
}

std::shared_ptr<FusedCrossFp16x3> make_fused_cross_fp16x3(const FusedCrossModel& model,
                                                          int multiprocessors,
                                                          std::span<std::byte> scratch) {
  const int ctas = multiprocessors / 2 * 2;
  const int scratch_bytes =
      fused_cross_fp16x3_scratch_bytes(fused_cross_fp16x3_tiling(fused_cross_shape(model)));
  if (ctas == 0 || static_cast<std::size_t>(ctas) * scratch_bytes > scratch.size()) return nullptr;
  FusedCrossFp16x3Plan plan = plan_fused_cross_fp16x3(model);
  const std::vector<unsigned> tickets{0};
  DeviceArrays memory({std::as_bytes(std::span(plan.weights)),
                       std::as_bytes(std::span(plan.vectors)),
                       std::as_bytes(std::span(plan.groups)), std::as_bytes(std::span(plan.fields)),
                       std::as_bytes(std::span(plan.stages)), std::as_bytes(std::span(tickets))});
  FusedCrossFp16x3Params& a = plan.params;
  a.weights = memory.at(0);
  a.vectors = static_cast<const float*>(memory.at(1));
  a.groups = static_cast<const Fp16x3ColumnGroup*>(memory.at(2));
  a.fields = static_cast<const Fp16x3Field*>(memory.at(3));
  a.stages = static_cast<const WeightStage*>(memory.at(4));
  a.tickets = static_cast<unsigned*>(memory.at(5));
  a.scratch = reinterpret_cast<char*>(scratch.data());
  return std::make_shared<FusedCrossFp16x3>(fused_cross_fp16x3_kernel(a), a, std::move(memory),
                                            ctas);
}

}  // namespace dpiframe
