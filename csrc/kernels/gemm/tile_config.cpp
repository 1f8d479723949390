#include "kernels/gemm/tile_config.h"

#include <algorithm>
#include <limits>
#include <span>

#include "kernels/gemm/linear.h"

namespace dpiframe {
namespace {

constexpr int kMultiprocessors = 132;

// A tile configuration and its time in microseconds, by a model that is fitted to sweeps on an H100
// (make gpu-sweep). A step is one k tile of a tile: it is bound by loading x and w, the more CTAs
// load the more. A tile's end is its epilogue, which pingpong hides but for the last.
struct TimedConfig {
  LinearConfig config;
  double step;
  double busy_step;  // beside `step`, where all multiprocessors are busy
  double tile;
  double once;  // a launch
};
constexpr TimedConfig kConfigs[] = {
    {{64, false, 0, 1, kShortTileRows}, 0.1977, 0.0258, 1.05, 2.00},
    {{112, false, 0, 1, kShortTileRows}, 0.1836, 0.0891, 1.25, 2.54},
    {{64, false}, 0.1725, 0.1467, 1.11, 3.33},
    {{112, false}, 0.2138, 0.2126, 1.43, 3.33},
    {{160, false}, 0.3020, 0.2748, 1.59, 3.33},
    {{256, false}, 0.5185, 0.3271, 2.21, 3.33},
    {{128, true}, 0.2573, 0.1570, 0.75, 5.57},
    {{144, true}, 0.2933, 0.1974, 0.56, 6.06}};
constexpr TimedConfig kFp16x3Configs[] = {{{64, false}, 0.4642, 0.1200, 2.33, 2.54},
                                          {{112, false}, 0.5897, 0.0831, 2.99, 2.54},
                                          {{128, false}, 0.5741, 0.0888, 3.32, 2.54},
                                          {{144, false}, 0.7390, 0.1069, 3.45, 2.54},
                                          {{160, false}, 1.1760, 0.1693, 3.14, 2.54}};
// What CTAs that share a tile take to exchange their sums: once, and for each column that one
// sends. In 16 bits the fit gave 0.21 once, with which tiles were shared at a loss.
constexpr double kExchange = 1.30, kExchangedColumn = 32.4e-3;
constexpr double kFp16x3Exchange = 0.46, kFp16x3ExchangedColumn = 37.6e-3;

std::span<const TimedConfig> timed_configs(Precision precision) {
  if (precision == Precision::kFp32) return kFp16x3Configs;
  return kConfigs;
}

// Clusters of CTAs that share a tile which run at once: a cluster lies in one GPC, of 16 or 18
// multiprocessors.
int ctas_at_once(int split) {
  switch (split) {
    case 4:
      return 4 * 30;
    case 8:
      return 8 * 14;
    default:
      return kMultiprocessors;
  }
}

double microseconds(const TimedConfig& timed, bool fp16x3, std::int64_t tiles, int k_tiles,
                    int split) {
  const std::int64_t ctas = tiles * split;
  const int at_once = ctas_at_once(split);
  const double rounds = static_cast<double>((ctas + at_once - 1) / at_once);
  const double busy =
      static_cast<double>(std::min<std::int64_t>(ctas, kMultiprocessors)) / kMultiprocessors;
  const double steps = (k_tiles + split - 1) / split;
  const double sent = timed.config.tile_n * (split - 1.0) / split;
  const double exchanged = sent * (fp16x3 ? kFp16x3ExchangedColumn : kExchangedColumn);
  const double once = split == 1 ? 0 : fp16x3 ? kFp16x3Exchange : kExchange;
  return timed.once + once +
         rounds * (steps * (timed.step + busy * timed.busy_step) + timed.tile + exchanged);
}

struct Chosen {
  LinearConfig config;
  double microseconds;
};

Chosen choose(Precision precision, std::int64_t rows, int n, int k) {
  const bool fp16x3 = precision == Precision::kFp32;
  const int k_tiles = WeightLayout(precision, n, k).num_k_tiles;
  Chosen best{{}, std::numeric_limits<double>::max()};
  for (const TimedConfig& timed : timed_configs(precision)) {
    const LinearConfig& config = timed.config;
    const std::int64_t row_tiles = (rows + config.rows - 1) / config.rows;
    const std::int64_t tiles = row_tiles * ((n + config.tile_n - 1) / config.tile_n);
    const int most =
        config.pingpong ? 1 : std::min(kMostSplit * config.rows / kTileRows, k_tiles / 2);
    for (int split = 1; split <= std::max(1, most); split *= 2) {
      const double time = microseconds(timed, fp16x3, tiles, k_tiles, split);
      if (time >= best.microseconds) continue;
      best = {config, time};
      best.config.split = split;
    }
  }
  return best;
}

}  // namespace

LinearConfig linear_config(Precision precision, std::int64_t rows, int n, int k) {
  return choose(precision, rows, n, k).config;
}

double linear_microseconds(Precision precision, std::int64_t rows, int n, int k) {
  return choose(precision, rows, n, k).microseconds;
}

std::vector<LinearConfig> all_linear_configs(Precision precision) {
  std::vector<LinearConfig> found;
  for (const TimedConfig& timed : timed_configs(precision)) found.push_back(timed.config);
  return found;
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

int head_partials(Precision precision, std::int64_t rows, int n, int k) {
  const int tile_n = linear_config(precision, rows, n, k).tile_n;
  return (n + tile_n - 1) / tile_n;
}

}  // namespace dpiframe
