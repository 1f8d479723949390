// What a job records of its scores: range, sum, and a histogram of their logits.
//
// Bin k of the histogram holds the scores p with p >= sigmoid(e) for exactly k of the 201 edges
// e = -10, -9.9, ..., 10: below -10, 200 bins of 0.1, and 10 or more. The comparison is exact, of
// the float32 score with the edge's sigmoid in double.
#pragma once

#include <array>
#include <cstdint>

namespace dpiframe {

constexpr int kScoreBins = 202;

struct ScoreStatistics {
  float min;  // of the scores that are not NaN; +inf and -inf where there are none
  float max;
  double sum;                                      // finite if and only if all scores are
  std::array<std::int64_t, kScoreBins> histogram;  // NaN is in bin 0
};

// One pass over scores [size], by the calling thread.
ScoreStatistics score_statistics(const float* scores, std::int64_t size);

}  // namespace dpiframe
