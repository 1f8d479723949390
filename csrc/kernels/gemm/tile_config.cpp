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
constexpr TimedConfig kConfigs[] = {{{64, false, 1, kShortTileRows}, 0.1632, 0.0800, 1.15, 2.03},
                                    {{112, false, 1, kShortTileRows}, 0.1605, 0.1225, 1.23, 2.41},
                                    {{64, false}, 0.2203, 0.0962, 1.51, 2.11},
                                    {{112, false}, 0.2015, 0.2144, 1.46, 2.65},
                                    {{128, false}, 0.2441, 0.1648, 1.51, 2.59},
                                    {{160, false}, 0.2892, 0.2069, 1.76, 3.08},
                                    {{208, false}, 0.3664, 0.2395, 1.95, 2.78},
                                    {{256, false}, 0.4873, 0.2662, 2.27, 2.96},
                                    {{128, true}, 0.2680, 0.1059, 0.94, 3.62}};
constexpr TimedConfig kFp16x3Configs[] = {{{64, false}, 0.4868, 0.1353, 1.60, 2.82},
                                          {{112, false}, 0.5430, 0.1550, 2.26, 3.14},
                                          {{128, false}, 0.5619, 0.1246, 2.44, 3.14},
                                          {{144, false}, 0.7254, 0.1713, 2.88, 3.17},
                                          {{160, false}, 0.8860, 0.1980, 3.01, 3.20}};
// What CTAs that share a tile take to exchange their sums: once, and for each column that one
// sends.
constexpr double kExchange = 0.56, kExchangedColumn = 34.0e-3;
constexpr double kFp16x3Exchange = 1.12, kFp16x3ExchangedColumn = 17.8e-3;

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
