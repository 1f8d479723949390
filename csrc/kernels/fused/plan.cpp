#include "kernels/fused/plan.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "common/check.h"

namespace dpiframe {
namespace {

constexpr int kChunkColumns = 8;

// The column of a layer's output at `column` of its 4 tiles; -1: none.
int output_column(const FusedMlpParams& a, int layer, int column) {
  const int width = a.widths[layer];
  const int quarter = column / a.tile;
  const int own = column % a.tile;
  if (own < quarter_width(width, quarter)) return quarter_begin(width, quarter) + own;
  const int extra = a.first_extra[quarter] + own - quarter_width(width, quarter);
  return layer == 0 && extra < a.first_extra[quarter + 1] ? width + extra : -1;
}

// The column of a layer's input at `i` of a chunk; -1: none.
int input_column(const FusedMlpParams& a, const std::vector<int>& x_columns, int layer, int chunk,
                 int i) {
  if (layer == 0) return x_columns[chunk] < 0 ? -1 : x_columns[chunk] + i;
  const int column = output_column(a, layer - 1, chunk * kChunkColumns + i);
  return column < a.widths[layer - 1] ? column : -1;
}

bool overlap(const WeightStage& a, const WeightStage& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

}  // namespace

int quarter_tile(const std::vector<int>& widths, int num_extras) {
  const int most = std::max(widths.front() + num_extras, *std::ranges::max_element(widths));
  for (const int tile : {64, 104, 128})
    if (most <= 4 * tile) return tile;
  return 0;
}

std::vector<int> slice_chunks(const std::vector<std::int64_t>& dims) {
  std::vector<int> slices;
  for (const std::int64_t dim : dims) {
    const auto chunks = static_cast<int>(dim / kChunkColumns);
    for (int chunk = 0; chunk == 0 || chunk < chunks; chunk += 2)
      slices.push_back(std::min(2, chunks - chunk));
  }
  return slices;
}

int x_chunks_of(const std::vector<int>& slices, int rank) {
  const std::size_t middle = (slices.size() + 1) / 2;
  int chunks = 0;
  for (std::size_t i = rank == 0 ? 0 : middle; i < (rank == 0 ? middle : slices.size()); ++i)
    chunks += slices[i];
  return (chunks + 1) / 2 * 2;
}

bool gather_fits(const std::vector<std::int64_t>& dims, std::int64_t num_ids,
                 std::int64_t max_rows) {
  if (num_ids > kMaxIdsRows || max_rows > std::numeric_limits<std::uint32_t>::max()) return false;
  for (const std::int64_t dim : dims)
    if (dim % kChunkColumns != 0 || dim > 16 * kMaxFieldSlices) return false;
  return slice_chunks(dims).size() <= kMaxFieldSlices;
}

std::int64_t fused_wave_samples(int compute_capability_major, int multiprocessors) {
  if (compute_capability_major != 9) return 0;
  return std::min(kMaxWaveSamples, std::int64_t{multiprocessors} / 2 * kTileSamples);
}

GatherPlan plan_gather(const std::vector<DeviceLookupField>& fields, DataType type,
                       FusedMlpParams& params) {
  GatherPlan plan;
  std::vector<int> columns;  // of x_0, the first of each slice
  for (std::size_t f = 0; f < fields.size(); ++f) {
    const DeviceLookupField& field = fields[f];
    int chunk = 0;
    for (const int chunks : slice_chunks({field.dim})) {
      const bool is_first = chunk == 0;
      const int column = chunk * kChunkColumns;
      params.ids_rows[columns.size()] = static_cast<std::uint16_t>(field.ids_row);
      columns.push_back(static_cast<int>(field.out_column) + column);
      plan.slices.push_back({static_cast<const char*>(field.table) + bytes_of(type) * column,
                             is_first ? field.wide : nullptr,
                             static_cast<std::uint32_t>(field.rows),
                             static_cast<std::uint32_t>(field.dim * bytes_of(type)), 0, chunks,
                             field.oov_row, is_first ? static_cast<std::int32_t>(f) : -1});
      chunk += chunks;
    }
  }
  const auto num_slices = static_cast<int>(columns.size());
  params.num_fields = static_cast<int>(fields.size());
  params.slices_end[0] = (num_slices + 1) / 2;
  params.slices_end[1] = num_slices;
  for (int rank = 0, i = 0; rank < 2; ++rank) {
    const std::size_t first = plan.x_columns.size();
    for (; i < params.slices_end[rank]; ++i) {
      plan.slices[i].x_offset = static_cast<std::uint32_t>(plan.x_columns.size() * kChunkStride);
      for (int chunk = 0; chunk < plan.slices[i].num_chunks; ++chunk)
        plan.x_columns.push_back(columns[i] + chunk * kChunkColumns);
    }
    params.zero_chunk[rank] = -1;
    if ((plan.x_columns.size() - first) % 2 != 0) {
      params.zero_chunk[rank] = static_cast<int>(plan.x_columns.size());
      plan.x_columns.push_back(-1);
    }
    params.x_chunks[rank] = static_cast<int>(plan.x_columns.size() - first);
  }
  return plan;
}

std::uint16_t to_bits16(DataType type, float value) {
  if (type == DataType::kHalf) return __half_as_ushort(__float2half_rn(value));
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

float from_float16(std::uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

std::vector<std::uint16_t> pack_weights(DataType type, const FusedMlpParams& a,
                                        const std::vector<int>& x_columns,
                                        const std::vector<LinearLayer>& layers) {
  std::vector<std::uint16_t> packed;
  const auto append_chunk = [&](int layer, int rank, int chunk) {
    for (int c = 0; c < 2 * a.tile; ++c) {
      const int row = output_column(a, layer, rank * 2 * a.tile + c);
      for (int i = 0; i < kChunkColumns; ++i) {
        const int column = input_column(a, x_columns, layer, chunk, i);
        const bool is_weight = row >= 0 && column >= 0;
        const auto at = static_cast<std::size_t>(row) * layers[layer].k + column;
        packed.push_back(to_bits16(type, is_weight ? layers[layer].w[at] : 0.0f));
      }
    }
  };
  const int half = output_chunks(a.tile) / 2;
  for (int rank = 0; rank < 2; ++rank)
    for (int layer = 0; layer < a.num_layers; ++layer) {
      const int chunks[] = {layer == 0 ? a.x_chunks[0] : half, layer == 0 ? a.x_chunks[1] : half};
      for (const int source : {rank, 1 - rank}) {
        const int first = source == 0 ? 0 : chunks[0];
        for (int chunk = first; chunk < first + chunks[source]; ++chunk)
          append_chunk(layer, rank, chunk);
      }
    }
  return packed;
}

std::vector<float> pack_vectors(const FusedMlpParams& a, const std::vector<LinearLayer>& layers,
                                const std::vector<float>& head) {
  std::vector<float> packed;
  for (int rank = 0; rank < 2; ++rank) {
    const auto append = [&](int layer, const std::vector<float>& values) {
      for (int c = 0; c < 2 * a.tile; ++c) {
        const int column = output_column(a, layer, rank * 2 * a.tile + c);
        const bool is_value = column >= 0 && column < static_cast<int>(values.size());
        packed.push_back(is_value ? values[column] : 0.0f);
      }
    };
    for (int layer = 0; layer < a.num_layers; ++layer) append(layer, layers[layer].bias);
    append(a.num_layers - 1, head);
  }
  return packed;
}

void assign_ring_offsets(std::vector<WeightStage>& stages, int ring_bytes) {
  const auto count = static_cast<int>(stages.size());
  DPIF_CHECK(count >= kMaxStages, "a ring is for at least ", kMaxStages, " stages, got ", count);
  int offset = 0;
  for (WeightStage& stage : stages) {
    if (offset + stage.bytes > ring_bytes) offset = 0;
    stage.offset = static_cast<std::uint32_t>(offset);
    offset += stage.bytes;
  }
  for (int i = 0; i < count; ++i) {
    int& distance = stages[i].distance;
    for (distance = 1; distance < kMaxStages; ++distance)
      if (overlap(stages[i], stages[(i - distance + count) % count])) break;
  }
}

}  // namespace dpiframe
