// Copies one sample's embedding rows of equal dim to its output row; with FM also returns the
// sample's FM term, whose sums stay in registers for the dims that are compiled in.
#pragma once

#include <cstdint>

namespace dpiframe {

struct SampleRows {
  const float* const* rows;     // [count]
  const std::int64_t* columns;  // [count] first column of each in out
  int count;
  std::int64_t dim;
  float* out;       // the sample's output row
  double* fm_sums;  // [2, dim] scratch
};

using GatherRows = float (*)(const SampleRows&);

// The loop for a dim; without FM it returns 0.
GatherRows gather_rows_for(std::int64_t dim, bool in_fm);
GatherRows gather_rows_for_avx2(std::int64_t dim, bool in_fm);

// The instruction set that those loops use on this machine.
const char* gather_rows_simd();

}  // namespace dpiframe
