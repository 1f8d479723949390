#include "kernels/gemm/tile_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/gemm/linear.h"

namespace dpiframe {
namespace {

constexpr int kMultiprocessors = 132;

// A tile configuration and its time in microseconds, by a model that is fitted to sweeps
// (tests/gpu/tile_fit.py). A step is one k tile of a tile: it is bound by loading x and w, the more
// CTAs load the more. A tile's end is its epilogue, which pingpong hides but for the last. Two CTAs
// of short tiles on a multiprocessor take as long as one after the other: loads bind them.
struct TimedConfig {
  LinearConfig config;
  double step;
  double busy_step;  // beside `step`, where all multiprocessors are busy
  double tile;
  double once;  // a launch
};
constexpr TimedConfig kConfigs[] = {{{64, false, 1, kShortTileRows}, 0.1163, 0.0242, 0.45, 2.22},
                                    {{128, false, 1, kShortTileRows}, 0.1233, 0.0804, 0.40, 2.72},
                                    {{64, false}, 0.1148, 0.1105, 0.93, 2.37},
                                    {{112, false}, 0.1838, 0.1413, 1.40, 2.44},
                                    {{128, false}, 0.2295, 0.1247, 1.41, 2.35},
                                    {{160, false}, 0.2118, 0.2350, 1.69, 2.56},
                                    {{208, false}, 0.4098, 0.1562, 2.12, 2.20},
                                    {{256, false}, 0.5233, 0.1643, 2.36, 2.16},
                                    {{128, true}, 0.3040, 0.0290, 1.03, 3.17}};
constexpr TimedConfig kFp16x3Configs[] = {{{64, false, 1, kShortTileRows}, 0.2410, 0.0, 0.0, 3.25},
                                          {{64, false}, 0.4065, 0.0446, 1.51, 2.22},
                                          {{112, false}, 0.6002, 0.0130, 1.98, 2.62},
                                          {{128, false}, 0.6235, 0.0624, 2.12, 2.76},
                                          {{144, false}, 0.6084, 0.1204, 2.28, 2.90},
                                          {{160, false}, 0.5661, 0.2264, 2.45, 2.99}};
// What CTAs that share a tile take to exchange their sums: once, and for each column that one
// sends.
constexpr double kExchange = 0.71, kExchangedColumn = 19.9e-3;
constexpr double kFp16x3Exchange = 0.44, kFp16x3ExchangedColumn = 12.5e-3;
// What a product's bytes take on an H200: a launch, bytes a microsecond.
constexpr double kMemory = 2.5, kMemoryRate = 4.2e6;

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

// The longer of the two, and more where both take as long.
double with_memory(double microseconds, double bytes) {
  const double memory = kMemory + bytes / kMemoryRate;
  return std::pow(std::pow(microseconds, 4) + std::pow(memory, 4), 0.25);
}

struct Chosen {
  LinearConfig config;
  double microseconds;
};

Chosen choose(Precision precision, std::int64_t rows, int n, int k, int places) {
  const bool fp16x3 = precision == Precision::kFp32;
  const int k_tiles = WeightLayout(precision, n, k).num_k_tiles;
  const auto elements = static_cast<double>(rows) * (n + k) + static_cast<double>(n) * k;
  const double bytes =
      elements * places * static_cast<double>(bytes_of(activation_type(precision)));
  Chosen best{{}, std::numeric_limits<double>::max()};
  for (const TimedConfig& timed : timed_configs(precision)) {
    const LinearConfig& config = timed.config;
    const std::int64_t row_tiles = (rows + config.rows - 1) / config.rows;
    const std::int64_t tiles = row_tiles * ((n + config.tile_n - 1) / config.tile_n) * places;
    if (config.pingpong && tiles <= kMultiprocessors) continue;  // nobody has two to take turns on
    const int most =
        config.pingpong ? 1 : std::min(kMostSplit * config.rows / kTileRows, k_tiles / 2);
    for (int split = 1; split <= std::max(1, most); split *= 2) {
      // Beyond what runs at once short tiles were the fastest in one of 580 shapes, by 1%.
      if (config.rows == kShortTileRows && tiles * split > 2 * kMultiprocessors) break;
      const double time = with_memory(microseconds(timed, fp16x3, tiles, k_tiles, split), bytes);
      if (time >= best.microseconds) continue;
      best = {config, time};
      best.config.split = split;
    }
  }
  return best;
}

}  // namespace

LinearConfig linear_config(Precision precision, std::int64_t rows, int n, int k, int places) {
  return choose(precision, rows, n, k, places).config;
}

double linear_microseconds(Precision precision, std::int64_t rows, int n, int k) {
  return choose(precision, rows, n, k, 1).microseconds;
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
