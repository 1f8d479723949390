// The bin of a score without a logarithm: score_statistics.h.
//
// A cell is the scores p whose distance q to the nearer end of [0, 1] has the same exponent and the
// same next 5 bits: q grows by 1/64 to 1/32 in a cell and by at least 1/20 from one edge to the
// next, so a cell holds at most one edge. A table has for each cell the number of edges before it
// and the next edge; one comparison with that edge gives the bin. 1 - p is exact for p >= 0.5.
//
// Scores are taken in blocks: one loop finds cells, range and sum of several scores at once, one
// counts. Neighbours are counted in different histograms, so that no count waits for the one
// before.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/head/score_statistics.h"

namespace dpiframe {
namespace {

constexpr int kNumEdges = kScoreBins - 1;
constexpr int kLanes = 4;
constexpr std::int64_t kBlock = 512;  // scores
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSmallest = 0x1p-15f;  // distance; the first edge is further away
constexpr int kShift = std::numeric_limits<float>::digits - 1 - 5;

constexpr std::int32_t leading_bits(float distance) {
  return std::bit_cast<std::int32_t>(distance) >> kShift;
}

constexpr std::int32_t kFirst = leading_bits(kSmallest);
constexpr std::int32_t kHalf = leading_bits(0.5f) - kFirst + 1;  // cells

// Cells of [0, 0.5), then those of [0.5, 1]. NaN and scores below 0 are in the first cell, scores
// above 1 in the cell of 1. Without branches.
inline std::int32_t cell_of(float score) {
  const float other = 1.0f - score;
  const float nearer = score < other ? score : other;
  const float distance = nearer > kSmallest ? nearer : kSmallest;
  return leading_bits(distance) + (score >= 0.5f ? kHalf - kFirst : -kFirst);
}

struct Cell {
  float next_edge;  // NaN, which nothing reaches, where there is none
  std::int32_t edges_before;
};
using CellTable = std::array<Cell, 2 * kHalf>;

// The smallest float32 that is no less than the edge's sigmoid.
std::array<float, kNumEdges> edge_scores() {
  std::array<float, kNumEdges> scores{};
  for (int e = 0; e < kNumEdges; ++e) {
    const double exact = 1.0 / (1.0 + std::exp((kNumEdges / 2 - e) / 10.0));
    const auto rounded = static_cast<float>(exact);
    scores[e] = rounded < exact ? std::nextafter(rounded, kInfinity) : rounded;
  }
  return scores;
}

CellTable cell_table() {
  const std::array<float, kNumEdges> edges = edge_scores();
  CellTable table{};
  for (std::int32_t cell = 0; cell < 2 * kHalf; ++cell) {
    // The nearer a score is to 1, the lower is its cell among those of the upper half.
    const auto is_before = [cell](float edge) {
      const std::int32_t own = cell_of(edge);
      return cell < kHalf ? own < cell : own < kHalf || own > cell;
    };
    const auto before = std::count_if(edges.begin(), edges.end(), is_before);
    table[cell] = {before < kNumEdges ? edges[before] : kNan, static_cast<std::int32_t>(before)};
  }
  return table;
}

// kLanes partial results; neighbouring scores go to different ones.
class Lanes {
 public:
  Lanes() {
    min_.fill(kInfinity);
    max_.fill(-kInfinity);
  }

  // Takes kNum scores at once, up to kBlock in all, a multiple of kNum.
  template <int kNum>
  void take(const float* scores, std::int64_t size, const CellTable& table) {
    std::array<std::int32_t, kBlock> cells;
    for (std::int64_t i = 0; i < size; ++i) cells[i] = cell_of(scores[i]);
    for (const float* s = scores; s < scores + size; s += kNum) {
      for (int i = 0; i < kNum; ++i) min_[i] = s[i] < min_[i] ? s[i] : min_[i];
      for (int i = 0; i < kNum; ++i) max_[i] = s[i] > max_[i] ? s[i] : max_[i];
      for (int i = 0; i < kNum; ++i) sum_[i] += s[i];
    }
    for (std::int64_t begin = 0; begin < size; begin += kNum)
      for (int i = 0; i < kNum; ++i) {
        const Cell& cell = table[cells[begin + i]];
        ++counts_[i][cell.edges_before + (scores[begin + i] >= cell.next_edge)];
      }
  }

  ScoreStatistics joined() const {
    ScoreStatistics all{kInfinity, -kInfinity, 0, {}};
    for (int i = 0; i < kLanes; ++i) {
      all.min = std::min(all.min, min_[i]);
      all.max = std::max(all.max, max_[i]);
      all.sum += sum_[i];
      for (int bin = 0; bin < kScoreBins; ++bin) all.histogram[bin] += counts_[i][bin];
    }
    return all;
  }

 private:
  std::array<float, kLanes> min_;
  std::array<float, kLanes> max_;
  std::array<double, kLanes> sum_{};
  std::array<std::array<std::int64_t, kScoreBins>, kLanes> counts_{};
};

}  // namespace

ScoreStatistics score_statistics(const float* scores, std::int64_t size) {
  static const CellTable table = cell_table();
  Lanes lanes;
  const std::int64_t whole = size / kLanes * kLanes;
  for (std::int64_t begin = 0; begin < whole; begin += kBlock)
    lanes.take<kLanes>(scores + begin, std::min(kBlock, whole - begin), table);
  lanes.take<1>(scores + whole, size - whole, table);
  return lanes.joined();
}

}  // namespace dpiframe
