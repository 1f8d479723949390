// The elementwise steps of a program: a functor each, which computes one element of out in float32
// from its sample's row, and a row of the table at the end, which is where a program finds it.
//
// A thread computes the elements of a row that are blockDim.x columns apart (each_element.cuh), so
// that reads of inputs of out's width and the writes are coalesced; each element is read and
// written once. What is one number a sample (fm, cross_scalar) has one thread a sample. cross_v1,
// whose every element needs a dot of the whole row, has a kernel of its own: a warp a sample.
#include <algorithm>
#include <map>

#include "kernels/elementwise/each_element.cuh"
#include "kernels/elementwise/steps.h"

namespace dpiframe {
namespace {

using Operands = ElementwiseOperands;

// out = x.
struct Copy {
  Matrix x;
  explicit Copy(const Operands& o) : x(o.inputs.at(0)) {}
  __device__ float operator()(std::int64_t row, int column) const { return load(x, row, column); }
};

// out = max(x, 0); x and out may be the same.
struct Relu {
  Matrix x;
  explicit Relu(const Operands& o) : x(o.inputs.at(0)) {}
  __device__ float operator()(std::int64_t row, int column) const {
    return fmaxf(load(x, row, column), 0.0f);
  }
};

// out(:, n * dim + d) = x(:, n) * weight[n, d]: dense features as embeddings. The `dim` threads
// that share a number of x read it at once.
struct Outer {
  Matrix x;
  const float* weight;
  int dim;
  explicit Outer(const Operands& o)
      : x(o.inputs.at(0)), weight(o.weights.at(0)), dim(o.out.width / x.width) {
    DPIF_CHECK(o.out.width == x.width * dim, "outer needs a multiple of ", x.width,
               " columns, got ", o.out.width);
  }
  __device__ float operator()(std::int64_t row, int column) const {
    return load(x, row, column / dim) * weight[column];
  }
};

// out = x * scale + shift.
struct Affine {
  Matrix x;
  const float* scale;
  const float* shift;
  explicit Affine(const Operands& o)
      : x(o.inputs.at(0)), scale(o.weights.at(0)), shift(o.weights.at(1)) {}
  __device__ float operator()(std::int64_t row, int column) const {
    return fmaf(load(x, row, column), scale[column], shift[column]);
  }
};

// out = alpha * x + beta, alpha one number a sample: the end of DCN's collapsed cross network.
struct ScaleShift {
  Matrix x;
  Matrix alpha;
  const float* beta;
  explicit ScaleShift(const Operands& o)
      : x(o.inputs.at(0)), alpha(o.inputs.at(1)), beta(o.weights.at(0)) {}
  __device__ float operator()(std::int64_t row, int column) const {
    return fmaf(load(x, row, column), load(alpha, row, 0), beta[column]);
  }
};

// out = x0 * wx + xl: DCNv2's cross layer after its product, where that has no epilogue for it.
struct CrossCombine {
  Matrix x0;
  Matrix wx;
  Matrix xl;
  explicit CrossCombine(const Operands& o)
      : x0(o.inputs.at(0)), wx(o.inputs.at(1)), xl(o.inputs.at(2)) {}
  __device__ float operator()(std::int64_t row, int column) const {
    return fmaf(load(x0, row, column), load(wx, row, column), load(xl, row, column));
  }
};

// out = alpha_L of DCN's recurrence alpha_0 = 1, alpha_{l+1} = alpha_l (1 + dots_l) + shift[l].
struct CrossScalar {
  Matrix dots;
  const float* shift;
  explicit CrossScalar(const Operands& o) : dots(o.inputs.at(0)), shift(o.weights.at(0)) {}
  __device__ float operator()(std::int64_t row, int) const {
    float alpha = 1.0f;
    for (int layer = 0; layer < dots.width; ++layer)
      alpha = fmaf(alpha, load(dots, row, layer), alpha) + shift[layer];
    return alpha;
  }
};

// out = 1/2 sum_d ((sum_f v)^2 - sum_f v^2) over the fields, `dim` wide, of xs: for FM over what no
// lookup makes by itself, a rare step. The two sums cancel, so they are double: in float32 a row of
// 39 fields of deviation 1 misses 1e-5.
struct Fm {
  static constexpr int kMaxInputs = 8;
  Matrix xs[kMaxInputs];
  int num_inputs;
  int dim;
  explicit Fm(const Operands& o)
      : num_inputs(static_cast<int>(o.inputs.size())), dim(o.sizes.at(0)) {
    DPIF_CHECK(num_inputs <= kMaxInputs, "FM takes at most ", kMaxInputs, " inputs, got ",
               num_inputs);
    std::copy(o.inputs.begin(), o.inputs.end(), xs);
  }
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

// out = sum of up to kMaxTerms xs + bias, if there is one.
struct Add {
  static constexpr int kMaxTerms = 16;
  Matrix xs[kMaxTerms];
  int num_terms = 0;
  const float* bias = nullptr;
  __device__ float operator()(std::int64_t row, int column) const {
    float sum = bias == nullptr ? 0.0f : bias[column];
    for (int i = 0; i < num_terms; ++i) sum += load(xs[i], row, column);
    return sum;
  }
};

constexpr int kCrossRows = 8;  // a block of the kernel below

// out = x0 * (xl . weight) + bias + xl: a layer of DCN's cross network that no pass collapsed. xl
// is read twice, the second time from cache.
__global__ void __launch_bounds__(32 * kCrossRows)
    cross_v1_kernel(std::int64_t rows, const __grid_constant__ Matrix x0,
                    const __grid_constant__ Matrix xl, const float* weight, const float* bias,
                    const __grid_constant__ Matrix out) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kCrossRows + threadIdx.y;
  if (row >= rows) return;
  float dot = 0.0f;
  for (int c = threadIdx.x; c < xl.width; c += 32) dot = fmaf(load(xl, row, c), weight[c], dot);
  for (int width = 16; width > 0; width /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, width);
  for (int c = threadIdx.x; c < out.width; c += 32)
    store(out, row, c, fmaf(load(x0, row, c), dot, bias[c] + load(xl, row, c)));
}

template <class Value>
ElementwiseLaunch each(const Operands& operands) {
  return [value = Value(operands), out = operands.out](std::int64_t rows, cudaStream_t stream) {
    each_element(rows, out, value, stream);
  };
}

// More than kMaxTerms terms take several launches, with out as a term of each next one.
ElementwiseLaunch add(const Operands& o) {
  std::vector<Add> sums(1);
  if (!o.weights.empty()) sums[0].bias = o.weights[0];
  for (const Matrix& x : o.inputs) {
    if (sums.back().num_terms == Add::kMaxTerms) {
      sums.emplace_back();
      sums.back().xs[sums.back().num_terms++] = o.out;
    }
    sums.back().xs[sums.back().num_terms++] = x;
  }
  return [sums, out = o.out](std::int64_t rows, cudaStream_t stream) {
    for (const Add& sum : sums) each_element(rows, out, sum, stream);
  };
}

ElementwiseLaunch cross_v1(const Operands& o) {
  return [x0 = o.inputs.at(0), xl = o.inputs.at(1), weight = o.weights.at(0),
          bias = o.weights.at(1), out = o.out](std::int64_t rows, cudaStream_t stream) {
    if (rows == 0) return;
    const auto num_blocks = static_cast<unsigned>((rows + kCrossRows - 1) / kCrossRows);
    cross_v1_kernel<<<num_blocks, dim3(32, kCrossRows), 0, stream>>>(rows, x0, xl, weight, bias,
                                                                     out);
    DPIF_CUDA_CHECK(cudaGetLastError());
  };
}

using Make = ElementwiseLaunch (*)(const Operands&);

// `Step.kernel` of dpiframe_core/program/steps.py -> what makes its launch.
const std::map<std::string, Make> kSteps = {
    {"add", add},
    {"affine", each<Affine>},
    {"copy", each<Copy>},
    {"cross_combine", each<CrossCombine>},
    {"cross_scalar", each<CrossScalar>},
    {"cross_v1", cross_v1},
    {"fm", each<Fm>},
    {"outer", each<Outer>},
    {"relu", each<Relu>},
    {"scale_shift", each<ScaleShift>},
};

}  // namespace

ElementwiseLaunch elementwise_step(const std::string& name, const ElementwiseOperands& operands) {
  const auto found = kSteps.find(name);
  DPIF_CHECK(found != kSteps.end(), "there is no elementwise step ", name);
  return found->second(operands);
}

}  // namespace dpiframe
