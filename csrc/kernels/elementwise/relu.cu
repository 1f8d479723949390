// out = max(x, 0): each element read once, written once; x and out may be the same.
#include "kernels/elementwise/each_element.cuh"
#include "kernels/elementwise/steps.h"

namespace dpiframe {
namespace {

struct ReluValue {
  Matrix x;
  __device__ float operator()(std::int64_t row, int column) const {
    return fmaxf(load(x, row, column), 0.0f);
  }
};

}  // namespace

void relu(std::int64_t rows, const Matrix& x, const Matrix& out, cudaStream_t stream) {
  each_element(rows, out, ReluValue{x}, stream);
}

}  // namespace dpiframe
