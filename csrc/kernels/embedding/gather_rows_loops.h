// The loops of gather_rows, compiled once for every instruction set that is worth it: the file that
// includes this one sets kMaxWidth, the floats of its widest register, inside a namespace of its
// own. Nothing of the standard library is used here, so that no other file can end up with a copy
// of an inline function that needs more than the baseline. Lanes never mix before the last sum,
// which runs in the order of d: every instruction set gives the same bits.

template <int kWidth>
struct VecOf {
  typedef float Type [[gnu::vector_size(kWidth * sizeof(float))]];
};
template <int kWidth>
using Vec = typename VecOf<kWidth>::Type;
template <int kWidth>
struct SumsOf {
  typedef double Type [[gnu::vector_size(kWidth * sizeof(double))]];
};
template <int kWidth>
using Sums = typename SumsOf<kWidth>::Type;

constexpr int width_for(int dim) {
  int width = kMaxWidth;
  while (dim % width != 0) width /= 2;
  return width;
}

// FM is a small difference of two large sums: these are double.
template <int kDim, bool kFm>
float gather_rows(const SampleRows& sample) {
  constexpr int kWidth = width_for(kDim);
  constexpr int kSteps = kDim / kWidth;
  Sums<kWidth> sum[kSteps] = {};
  Sums<kWidth> squares[kSteps] = {};
  for (int k = 0; k < sample.count; ++k) {
    const float* row = sample.rows[k];
    float* out = sample.out + sample.columns[k];
    for (int i = 0; i < kSteps; ++i) {
      // Rows need no alignment beyond a float's, so they move through __builtin_memcpy.
      Vec<kWidth> values;
      __builtin_memcpy(&values, row + i * kWidth, sizeof(values));
      __builtin_memcpy(out + i * kWidth, &values, sizeof(values));
      if constexpr (kFm) {
        const auto exact = __builtin_convertvector(values, Sums<kWidth>);
        sum[i] += exact;
        squares[i] += exact * exact;
      }
    }
  }
  double fm = 0.0;
  if constexpr (kFm) {
    for (int i = 0; i < kSteps; ++i) {
      const Sums<kWidth> terms = sum[i] * sum[i] - squares[i];
      for (int d = 0; d < kWidth; ++d) fm += terms[d];
    }
  }
  return static_cast<float>(0.5 * fm);
}

// Any dim, with the sums in memory.
template <bool kFm>
float gather_rows_of_any_dim(const SampleRows& sample) {
  const std::int64_t dim = sample.dim;
  double* sum = sample.fm_sums;
  double* squares = sample.fm_sums + dim;
  for (std::int64_t d = 0; kFm && d < 2 * dim; ++d) sum[d] = 0.0;
  for (int k = 0; k < sample.count; ++k) {
    const float* __restrict row = sample.rows[k];
    float* __restrict out = sample.out + sample.columns[k];
    for (std::int64_t d = 0; d < dim; ++d) out[d] = row[d];
    if constexpr (kFm) {
      for (std::int64_t d = 0; d < dim; ++d) {
        const double exact = row[d];
        sum[d] += exact;
        squares[d] += exact * exact;
      }
    }
  }
  double fm = 0.0;
  for (std::int64_t d = 0; kFm && d < dim; ++d) fm += sum[d] * sum[d] - squares[d];
  return static_cast<float>(0.5 * fm);
}

template <bool kFm>
GatherRows gather_rows_for_dim(std::int64_t dim) {
  switch (dim) {
    case 1:
      return gather_rows<1, kFm>;
    case 8:
      return gather_rows<8, kFm>;
    case 10:
      return gather_rows<10, kFm>;
    case 16:
      return gather_rows<16, kFm>;
    case 32:
      return gather_rows<32, kFm>;
    default:
      return gather_rows_of_any_dim<kFm>;
  }
}
