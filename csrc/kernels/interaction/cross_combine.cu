// out = x0 * wx + xl: DCNv2's cross layer behind its product, where that has no epilogue for it.
#include "kernels/elementwise/each_element.cuh"
#include "kernels/elementwise/steps.h"

namespace dpiframe {
namespace {

struct CrossCombineValue {
  Matrix x0;
  Matrix wx;
  Matrix xl;
  __device__ float operator()(std::int64_t row, int column) const {
    return fmaf(load(x0, row, column), load(wx, row, column), load(xl, row, column));
  }
};

}  // namespace

void cross_combine(std::int64_t rows, const Matrix& x0, const Matrix& wx, const Matrix& xl,
                   const Matrix& out, cudaStream_t stream) {
  each_element(rows, out, CrossCombineValue{x0, wx, xl}, stream);
}

}  // namespace dpiframe
