#include "kernels/gemm/sequence/sequence_config.h"

#include <algorithm>
#include <limits>

#include "common/check.h"

namespace dpiframe {
namespace {

constexpr int kMultiprocessors = 132;
// Microseconds on an H100: a launch, and from the end of a tile until one that needs it begins.
constexpr double kOnce = 5.0;
constexpr double kHandover = 1.5;
// A tile's epilogue where nothing hides it, beside what its end takes in turns.
constexpr double kLastEpilogue = 2.5;

struct Level {
  double tiles = 0;    // of all multiprocessors' time
  double longest = 0;  // a tile, until those that need it begin
};

double microseconds(const TimedConfig& timed, std::int64_t rows,
                    const std::vector<ProductShape>& products) {
  const std::int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
  std::vector<Level> levels;
  std::vector<std::size_t> level_of;
  for (const ProductShape& product : products) {
    std::size_t level = 0;
    for (const int before : product.after) level = std::max(level, level_of.at(before) + 1);
    level_of.push_back(level);
    levels.resize(std::max(levels.size(), level + 1));
    const double k_tiles = (product.k + 63) / 64;
    const int tile_n = timed.config.tile_n;
    const auto tiles = static_cast<double>(row_tiles * ((product.n + tile_n - 1) / tile_n));
    const double busy = std::min(1.0, tiles / kMultiprocessors);
    const double tile = k_tiles * (timed.step + busy * timed.busy_step) + timed.tile;
    levels[level].tiles += tiles * tile / kMultiprocessors;
    const double alone = tile + (timed.config.pingpong ? kLastEpilogue : 0) + kHandover;
    levels[level].longest = std::max(levels[level].longest, alone);
  }
  double total = kOnce;
  for (const Level& level : levels) total += std::max(level.tiles, level.longest);
  return total;
}

}  // namespace

SequenceChoice sequence_choice(Precision precision, std::int64_t rows,
                               const std::vector<ProductShape>& products) {
  DPIF_CHECK(activation_type(precision) != DataType::kFloat, "a sequence of products takes 16 bits");
  SequenceChoice best{{}, std::numeric_limits<double>::max()};
  for (const TimedConfig& timed : timed_configs(precision)) {
    const int tile_n = timed.config.tile_n;
    if (tile_n == 112 || tile_n == 160) continue;  // no kernel has them
    const double taken = microseconds(timed, rows, products);
    if (taken < best.microseconds) best = {timed.config, taken};
  }
  return best;
}

}  // namespace dpiframe
