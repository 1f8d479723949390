#include "kernels/linear_config.h"

#include <limits>

#include "kernels/linear.h"

namespace dpiframe {
namespace {

constexpr int kProcessors = 132;
constexpr LinearConfig kConfigs[] = {{64, false},  {112, false}, {160, false},
                                     {208, false}, {256, false}, {128, false}};

}  // namespace

LinearConfig linear_config(Precision precision, std::int64_t rows, int n) {
  const std::int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
  LinearConfig best{};
  auto least = std::numeric_limits<std::int64_t>::max();
  for (const LinearConfig& config : kConfigs) {
    if (precision == Precision::kFp32 && config.tile_n > 160) continue;
    const std::int64_t tiles = row_tiles * ((n + config.tile_n - 1) / config.tile_n);
    const std::int64_t cost = (tiles + kProcessors - 1) / kProcessors * (config.tile_n + 30);
    if (cost >= least) continue;
    least = cost;
    best = config;
  }
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
