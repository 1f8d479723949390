// out = 1/2 sum_d ((sum_f v)^2 - sum_f v^2), for FM over what no lookup makes by itself.
// A thread owns a row: it reads the row's fields once for each d. A rare step, kept plain. The two
// sums cancel, so they are double: in float32 a row of 39 fields of deviation 1 misses 1e-5.
#include "kernels/elementwise/each_element.cuh"
#include "kernels/elementwise/steps.h"

namespace dpiframe {
namespace {

constexpr int kMaxInputs = 8;

struct FmValue {
  Matrix xs[kMaxInputs];
  int num_inputs;
  int dim;
  __device__ float operator()(std::int64_t row, int) const {
    double fm = 0.0;
    for (int d = 0; d < dim; ++d) {
      double sum = 0.0;
      double squares = 0.0;
      for (int i = 0; i < num_inputs; ++i)
        for (int column = d; column < xs[i].width; column += dim) {
          const double v = load(xs[i], row, column);
          sum += v;
          squares += v * v;
        }
      fm += sum * sum - squares;
    }
    return static_cast<float>(0.5 * fm);
  }
};

}  // namespace

void fm(std::int64_t rows, const std::vector<Matrix>& xs, int dim, const Matrix& out,
        cudaStream_t stream) {
  DPIF_CHECK(xs.size() <= kMaxInputs, "FM takes at most ", kMaxInputs, " inputs, got ", xs.size());
  FmValue value{};
  value.num_inputs = static_cast<int>(xs.size());
  value.dim = dim;
  std::copy(xs.begin(), xs.end(), value.xs);
  each_element(rows, out, value, stream);
}

}  // namespace dpiframe
