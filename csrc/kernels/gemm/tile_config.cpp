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
// CTAs load the more. A tile's end is its epilogue, which pingpong hides but for the last.
struct TimedConfig {
  LinearConfig config;
  double step;
  double busy_step;  // beside `step`, for each CTA on a multiprocessor, where all are busy
  double tile;
  double once;  // a launch
};
constexpr TimedConfig kConfigs[] = {{{64, false, 1, kShortTileRows, 1}, 0.12, 0.01, 0.4, 1.6},
                                    {{64, false, 1, kShortTileRows, 2}, 0.16, 0.01, 0.4, 1.4},
                                    {{128, false, 1, kShortTileRows, 1}, 0.16, 0.01, 0.7, 1.9},
                                    {{128, false, 1, kShortTileRows, 2}, 0.18, 0.03, 0.7, 1.6},
                                    {{64, false}, 0.2226, 0.0626, 1.38, 2.34},
                                    {{112, false}, 0.2148, 0.1671, 1.52, 2.65},
                                    {{128, false}, 0.2479, 0.1358, 1.57, 2.57},
                                    {{160, false}, 0.2969, 0.1742, 1.91, 2.94},
                                    {{208, false}, 0.3818, 0.2102, 2.01, 2.66},
                                    {{256, false}, 0.5115, 0.2169, 2.46, 2.71},
                                    {{128, true}, 0.2699, 0.0878, 0.97, 3.57}};
constexpr TimedConfig kFp16x3Configs[] = {{{64, false, 1, kShortTileRows, 1}, 0.4, 0.05, 0.7, 1.9},
                                          {{64, false, 1, kShortTileRows, 2}, 0.4, 0.07, 0.7, 1.6},
                                          {{64, false}, 0.4807, 0.1084, 1.58, 2.99},
                                          {{112, false}, 0.5437, 0.1517, 2.26, 3.15},
                                          {{128, false}, 0.5666, 0.1165, 2.45, 3.13},
                                          {{144, false}, 0.7285, 0.1668, 2.86, 3.18},
                                          {{160, false}, 0.8860, 0.1980, 3.01, 3.20}};
// What CTAs that share a tile take to exchange their sums: once, and for each column that one
// sends.
constexpr double kExchange = 0.64, kExchangedColumn = 33.7e-3;
constexpr double kFp16x3Exchange = 1.04, kFp16x3ExchangedColumn = 19.3e-3;
// What a product's bytes take: a launch, bytes a microsecond. The rate is that of an H200, on which
// the model of chains was fitted, that these times are compared with; with an H100's, 3.0e6, tiles
// are chosen as well.
constexpr double kMemory = 2.5, kMemoryRate = 4.2e6;

std::span<const TimedConfig> timed_configs(Precision precision) {
  if (precision == Precision::kFp32) return kFp16x3Configs;
  return kConfigs;
}

// Clusters of CTAs that share a tile which run at once: a cluster lies in one GPC, of 16 or 18
// multiprocessors.
int ctas_at_once(const LinearConfig& config, int split) {
  switch (split) {
    case 4:
      return 4 * 30 * config.ctas;
    case 8:
      return 8 * 14 * config.ctas;
    default:
      return kMultiprocessors * config.ctas;
  }
}

double microseconds(const TimedConfig& timed, bool fp16x3, std::int64_t tiles, int k_tiles,
                    int split) {
  const std::int64_t ctas = tiles * split;
  const int at_once = ctas_at_once(timed.config, split);
  const double rounds = static_cast<double>((ctas + at_once - 1) / at_once);
  const double busy = static_cast<double>(std::min<std::int64_t>(ctas, at_once)) / kMultiprocessors;
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
