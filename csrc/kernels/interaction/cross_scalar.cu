// out = alpha_L of DCN's recurrence alpha_{l+1} = alpha_l (1 + dots_l) + shift[l]: a thread a row.
#include "kernels/elementwise/each_element.cuh"
#include "kernels/elementwise/steps.h"

namespace dpiframe {
namespace {

struct CrossScalarValue {
  Matrix dots;
  const float* shift;
  __device__ float operator()(std::int64_t row, int) const {
    float alpha = 1.0f;
    for (int layer = 0; layer < dots.width; ++layer)
      alpha = fmaf(alpha, load(dots, row, layer), alpha) + shift[layer];
    return alpha;
  }
};

}  // namespace

void cross_scalar(std::int64_t rows, const Matrix& dots, const float* shift, const Matrix& out,
                  cudaStream_t stream) {
  each_element(rows, out, CrossScalarValue{dots, shift}, stream);
}

}  // namespace dpiframe
