// out(:, n * dim + d) = x(:, n) * weight[n, d]: dense features as embeddings.
// The `dim` threads that share a number of x read it at once; out is written once.
#include "kernels/elementwise/each_element.cuh"
#include "kernels/elementwise/steps.h"

namespace dpiframe {
namespace {

struct OuterValue {
  Matrix x;
  const float* weight;
  int dim;
  __device__ float operator()(std::int64_t row, int column) const {
    return load(x, row, column / dim) * weight[column];
  }
};

}  // namespace

void outer(std::int64_t rows, const Matrix& x, const float* weight, int dim, const Matrix& out,
           cudaStream_t stream) {
  each_element(rows, out, OuterValue{x, weight, dim}, stream);
}

}  // namespace dpiframe
