// Tiles and layouts that the fused forward kernels share: pure functions of a model's shapes.
//
// A cluster is two CTAs, a CTA has two consumer warpgroups: a layer's output columns are four
// quarters, of which CTA 0 makes the first half, quarters 0 and 1.
// Activations of 16 bits lie in shared memory as chunks: 8 columns of all 64 samples of a tile, 16
// bytes a sample, which are wgmma's core matrices without swizzle. Those that CTA 0 makes come
// first.
#pragma once

#include <cstdint>
#include <vector>

#include "common/host_device.h"

namespace dpiframe {

constexpr int kTileSamples = 64;
constexpr int kMaxFieldSlices = 64;
constexpr int kMaxLayers = 4;
constexpr std::int64_t kMaxIdsRows = 65536;  // fields of a batch
constexpr int kMaxSmemBytes = 227 * 1024;
constexpr int kMaxStages = 8;  // of a weight pipeline: weights that are on their way or in use
// 16 bytes more than the samples take, so that neighbouring chunks of a sample are in other banks.
constexpr int kChunkStride = kTileSamples * 16 + 16;

// Up to 16 columns (two chunks) of a field.
struct alignas(16) FieldSlice {
  const char* table;  // its first column; null: the field has a wide part only
  const float* wide;  // or null
  std::uint32_t rows;
  std::uint32_t row_bytes;
  std::uint32_t x_offset;  // bytes from the start of x_0 to its first chunk
  std::int32_t num_chunks;
  std::int64_t oov_row;  // -1: none
  std::int32_t counter;  // of the field's bad ids; -1: another slice of the field counts them
};

// One pipeline stage: a TMA bulk copy of weights.
struct alignas(16) WeightStage {
  std::uint32_t source;  // byte offset from a base that each kernel chooses
  std::uint32_t offset;  // the same, in shared memory
  std::int32_t bytes;
  std::int32_t distance;  // stage i waits until stage i - distance is consumed
};

// mbarriers of one purpose, among those that follow the full and empty barriers of the stages.
struct BarrierGroup {
  int first;
  int count;
  int arrivals;  // that complete a phase

  constexpr int end() const { return first + count; }
};
// Bytes of all mbarriers of a CTA; kLast is the last group.
template <BarrierGroup kLast>
constexpr int kMbarrierBytes = (2 * kMaxStages + kLast.end()) * 8;

// A CTA's weights of one k-step (16 rows of k, two tiles of columns), 2 bytes each.
DPIF_HOST_DEVICE constexpr int weight_step_bytes(int tile) {
  return 2 * tile * 32;
}
// Of a layer's output in quarters of `tile` columns.
DPIF_HOST_DEVICE constexpr int output_chunks(int tile) {
  return 4 * tile / 8;
}
// The columns of a layer that a quarter makes: [begin, the next quarter's begin).
DPIF_HOST_DEVICE constexpr int quarter_begin(int columns, int quarter) {
  return columns * quarter / 4;
}
DPIF_HOST_DEVICE constexpr int quarter_width(int columns, int quarter) {
  return quarter_begin(columns, quarter + 1) - quarter_begin(columns, quarter);
}

// The narrowest quarter that is compiled, for layers of these widths and the first layer's extra
// columns; 0: none is wide enough.
int quarter_tile(const std::vector<int>& widths, int num_extras);

// The chunks of each slice of fields of these dims; dim 0: a field with a wide part only.
std::vector<int> slice_chunks(const std::vector<std::int64_t>& dims);
// The chunks of x_0 that CTA `rank` gathers, which is its half of the slices; even.
int x_chunks_of(const std::vector<int>& slices, int rank);

// Whether fields of these dims can be gathered: `num_ids` rows of ids, tables of up to `max_rows`.
bool gather_fits(const std::vector<std::int64_t>& dims, std::int64_t num_ids,
                 std::int64_t max_rows);

constexpr std::int64_t kMaxWaveSamples = 4096;  // beyond, a launch for each step is as fast
// The largest batch whose tiles all have a cluster of their own at a time; 0: the GPU has no fused
// kernel.
std::int64_t fused_wave_samples(int compute_capability_major, int multiprocessors);

}  // namespace dpiframe
