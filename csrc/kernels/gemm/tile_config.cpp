#include "kernels/gemm/tile_config.h"

#include <limits>

#include "kernels/gemm/linear.h"

namespace dpiframe {
namespace {

constexpr int kProcessors = 132;
constexpr LinearConfig kConfigs[] = {{64, false},  {112, false}, {160, false},
                                     {256, false}, {128, true},  {144, true}};
constexpr LinearConfig kSplitConfigs[] = {
    {64, false}, {112, false}, {128, false}, {144, false}, {160, false}};

// Time in units of a column of a tile, as measured on an H200: a tile's start and end cost as much
// as 26 columns (of the split product 60), once for each round of tiles where a block does one
// after the other, once in all where its warpgroups alternate.
std::int64_t cost(const LinearConfig& config, std::int64_t tiles, bool split) {
  const std::int64_t rounds = (tiles + kProcessors - 1) / kProcessors;
  if (config.alternate) return rounds * config.tile_n + 30;
  return rounds * (config.tile_n + (split ? 60 : 26));
}

}  // namespace

LinearConfig linear_config(Precision precision, std::int64_t rows, int n) {
  const bool split = precision == Precision::kFp32;
  const std::int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
  LinearConfig best{};
  auto least = std::numeric_limits<std::int64_t>::max();
  const auto consider = [&](const LinearConfig& config) {
    const std::int64_t tiles = row_tiles * ((n + config.tile_n - 1) / config.tile_n);
    const std::int64_t time = cost(config, tiles, split);
    if (time >= least) return;
    least = time;
    best = config;
  };
  for (const LinearConfig& config : kConfigs)
    if (!split) consider(config);
  for (const LinearConfig& config : kSplitConfigs)
    if (split) consider(config);
  return best;
}

WeightLayout::WeightLayout(Precision precision, int n, int k)
    : chunk(activation_type(precision) == DataType::kFloat ? 32 : 64),
      chunks((k + chunk - 1) / chunk),
      rows((n + 15) / 16 * 16),
      scale_offset(std::size_t{128} * chunks * rows),
      plain_offset(scale_offset + (sizeof(float) * n + 15) / 16 * 16),
      bytes(precision == Precision::kFp32 ? plain_offset + sizeof(float) * n * k : scale_offset) {}

std::size_t prepared_weight_bytes(Precision precision, int n, int k) {
  return WeightLayout(precision, n, k).bytes;
}

int head_partials(Precision precision, std::int64_t rows, int n) {
  const int tile_n = linear_config(precision, rows, n).tile_n;
  return (n + tile_n - 1) / tile_n;
}

}  // namespace dpiframe
