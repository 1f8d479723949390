// out = alpha * x + beta, alpha a number a row: the end of DCN's collapsed cross network.
#include "kernels/elementwise/each_element.cuh"
#include "kernels/elementwise/steps.h"

namespace dpiframe {
namespace {

struct ScaleShiftValue {
  Matrix x;
  Matrix alpha;
  const float* beta;
  __device__ float operator()(std::int64_t row, int column) const {
    return fmaf(load(x, row, column), load(alpha, row, 0), beta[column]);
  }
};

}  // namespace

void scale_shift(std::int64_t rows, const Matrix& x, const Matrix& alpha, const float* beta,
                 const Matrix& out, cudaStream_t stream) {
  each_element(rows, out, ScaleShiftValue{x, alpha, beta}, stream);
}

}  // namespace dpiframe
