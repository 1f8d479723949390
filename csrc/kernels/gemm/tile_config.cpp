#include "kernels/gemm/tile_config.h"

#include <iterator>
#include <limits>

#include "kernels/gemm/linear.h"

namespace dpiframe {
namespace {

constexpr int kMultiprocessors = 132;
constexpr LinearConfig kConfigs[] = {{64, false},  {112, false}, {160, false},
                                     {256, false}, {128, true},  {144, true}};
constexpr LinearConfig kFp16x3Configs[] = {
    {64, false}, {112, false}, {128, false}, {144, false}, {160, false}};

// Time in units of a column of a tile, as measured on an H200: a tile's prologue and epilogue cost
// as much as 26 columns (60 in FP16x3), once for each round of tiles if both warpgroups share a
// tile, once in all if they pingpong.
std::int64_t cost(const LinearConfig& config, std::int64_t tiles, bool fp16x3) {
  const std::int64_t rounds = (tiles + kMultiprocessors - 1) / kMultiprocessors;
  if (config.pingpong) return rounds * config.tile_n + 30;
  return rounds * (config.tile_n + (fp16x3 ? 60 : 26));
}

}  // namespace

LinearConfig linear_config(Precision precision, std::int64_t rows, int n) {
  const bool fp16x3 = precision == Precision::kFp32;
  const std::int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
  LinearConfig best{};
  auto least = std::numeric_limits<std::int64_t>::max();
  for (const LinearConfig& config : all_linear_configs(precision)) {
    const std::int64_t tiles = row_tiles * ((n + config.tile_n - 1) / config.tile_n);
    const std::int64_t time = cost(config, tiles, fp16x3);
    if (time >= least) continue;
    least = time;
    best = config;
  }
  return best;
}

std::vector<LinearConfig> all_linear_configs(Precision precision) {
  if (precision == Precision::kFp32) return {std::begin(kFp16x3Configs), std::end(kFp16x3Configs)};
  return {std::begin(kConfigs), std::end(kConfigs)};
}

// A pair must wait for one another in each step, which pays where the loop is long: then CTAs drift
// apart, and w comes from L2 for each alone. On an H200, 65,536 rows in fp16, pairs take 0.82 of
// the time for FiBiNET's products (k = 10,413, then 400), 1.03 to 1.04 for k = 400 to 1,024.
int ctas_a_cluster(std::int64_t row_tiles, int tiles_n, int num_k_tiles) {
  constexpr int kLong = 64;
  const auto rounds = [&](int cluster) {
    const std::int64_t turns = (row_tiles + cluster - 1) / cluster * tiles_n;
    const int at_once = kMultiprocessors / cluster;
    return (turns + at_once - 1) / at_once;
  };
  return num_k_tiles >= kLong && row_tiles > 1 && rounds(2) <= rounds(1) ? 2 : 1;
}

WeightLayout::WeightLayout(Precision precision, int n, int k)
    : k_tile(activation_type(precision) == DataType::kFloat ? 32 : 64),
      num_k_tiles((k + k_tile - 1) / k_tile),
      rows((n + 15) / 16 * 16),
      scale_offset(std::size_t{128} * num_k_tiles * rows),
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
