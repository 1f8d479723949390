#include "kernels/gather_rows_cpu.h"

#include <algorithm>
#include <cstring>

namespace dpiframe {
namespace {

// A row of kDim floats as one value: the compiler cuts it into the registers that there are.
// Rows need no alignment beyond a float's.
template <int kDim>
using Row [[gnu::vector_size(kDim * sizeof(float)), gnu::aligned(4), gnu::may_alias]] = float;

template <int kDim, bool kFm>
float gather_rows(const SampleRows& sample) {
  Row<kDim> sum = {};
  Row<kDim> sum_of_squares = {};
  for (int k = 0; k < sample.count; ++k) {
    const auto row = *reinterpret_cast<const Row<kDim>*>(sample.rows[k]);
    *reinterpret_cast<Row<kDim>*>(sample.out + sample.columns[k]) = row;
    if constexpr (kFm) {
      sum += row;
      sum_of_squares += row * row;
    }
  }
  float fm = 0.0f;
  if constexpr (kFm) {
    const Row<kDim> terms = sum * sum - sum_of_squares;
    for (int d = 0; d < kDim; ++d) fm += terms[d];
  }
  return 0.5f * fm;
}

// Any dim, in steps of 16 bytes where a whole step is left.
template <bool kFm>
float gather_rows_of_any_dim(const SampleRows& sample) {
  const std::int64_t dim = sample.dim;
  float* sum = sample.fm_sums;
  float* sum_of_squares = sample.fm_sums + dim;
  if constexpr (kFm) std::fill(sum, sum + 2 * dim, 0.0f);
  for (int k = 0; k < sample.count; ++k) {
    const float* row = sample.rows[k];
    std::memcpy(sample.out + sample.columns[k], row, dim * sizeof(float));
    if constexpr (kFm) {
      for (std::int64_t d = 0; d < dim; ++d) {
        sum[d] += row[d];
        sum_of_squares[d] += row[d] * row[d];
      }
    }
  }
  float fm = 0.0f;
  if constexpr (kFm) {
    for (std::int64_t d = 0; d < dim; ++d) fm += sum[d] * sum[d] - sum_of_squares[d];
  }
  return 0.5f * fm;
}

template <bool kFm>
GatherRows gather_rows_for_dim(std::int64_t dim) {
  switch (dim) {
    case 1:
      return gather_rows<1, kFm>;
    case 4:
      return gather_rows<4, kFm>;
    case 8:
      return gather_rows<8, kFm>;
    case 16:
      return gather_rows<16, kFm>;
    case 32:
      return gather_rows<32, kFm>;
    default:
      return gather_rows_of_any_dim<kFm>;
  }
}

}  // namespace

GatherRows gather_rows_for(std::int64_t dim, bool in_fm) {
  return in_fm ? gather_rows_for_dim<true>(dim) : gather_rows_for_dim<false>(dim);
}

const char* gather_rows_simd() { return "baseline"; }

}  // namespace dpiframe
