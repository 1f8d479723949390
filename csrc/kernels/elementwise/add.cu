// out = sum of xs + bias. More than kMaxTerms of them take several launches, out in between.
#include <algorithm>

#include "kernels/elementwise/each_element.cuh"
#include "kernels/elementwise/steps.h"

namespace dpiframe {
namespace {

constexpr int kMaxTerms = 16;

struct AddValue {
  Matrix xs[kMaxTerms];
  int num_terms;
  const float* bias;
  __device__ float operator()(std::int64_t row, int column) const {
    float sum = bias == nullptr ? 0.0f : bias[column];
    for (int i = 0; i < num_terms; ++i) sum += load(xs[i], row, column);
    return sum;
  }
};

}  // namespace

void add(std::int64_t rows, const std::vector<Matrix>& xs, const float* bias, const Matrix& out,
         cudaStream_t stream) {
  AddValue value{};
  value.bias = bias;
  for (const Matrix& x : xs) {
    if (value.num_terms == kMaxTerms) {
      each_element(rows, out, value, stream);
      value = AddValue{};
      value.xs[value.num_terms++] = out;
    }
    value.xs[value.num_terms++] = x;
  }
  each_element(rows, out, value, stream);
}

}  // namespace dpiframe
