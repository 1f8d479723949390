// The elementwise steps of a program: a functor each, which computes one element of out in float32
// from its sample's row, and a row of the table at the end, which is where a program finds it.
//
// A thread computes the elements of a row that are blockDim.x columns apart (each_element.cuh), so
// that reads of inputs of out's width and the writes are coalesced; each element is read and
// written once. What is one number a sample (cross_scalar) has one thread a sample. cross_v1 and
// fm, which need sums over the whole row, have kernels of their own: a warp a sample.
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

constexpr int kWarpRows = 8;  // of a block of the kernels below, a warp each

// out = 1/2 sum_d ((sum_f v)^2 - sum_f v^2) over the fields, `dim` wide, of xs: for FM over what no
// lookup makes by itself. Of a warp, which owns a sample, `lanes` threads read a field's columns,
// and 32 / lanes fields are read side by side. The two sums cancel, so they are double: in float32
// a row of 39 fields of deviation 1 misses 1e-5.
struct FmParams {
  static constexpr int kMaxInputs = 8;
  Matrix xs[kMaxInputs];
  int num_inputs;
  int dim;
  int lanes;  // a power of two
};

__device__ double sum_of_lanes(double value, int first, int stop) {
  for (int lane = first; lane < stop; lane *= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  return value;
}

__global__ void __launch_bounds__(32 * kWarpRows)
    fm_kernel(std::int64_t rows, const __grid_constant__ FmParams p,
              const __grid_constant__ Matrix out) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarpRows + threadIdx.y;
  if (row >= rows) return;
  const int lane = threadIdx.x % p.lanes;
  const int field = threadIdx.x / p.lanes;
  double fm = 0.0;
  for (int first = 0; first < p.dim; first += p.lanes) {
    double sum = 0.0;
    double squares = 0.0;
    const int d = first + lane;
    for (int i = 0; i < p.num_inputs && d < p.dim; ++i) {
      const int width = p.xs[i].width;
#pragma unroll 4
      for (int column = field * p.dim + d; column < width; column += 32 / p.lanes * p.dim) {
        const double v = load(p.xs[i], row, column);
        sum += v;
        squares += v * v;
      }
    }
    sum = sum_of_lanes(sum, p.lanes, 32);
    squares = sum_of_lanes(squares, p.lanes, 32);
    fm += sum * sum - squares;
  }
  fm = sum_of_lanes(fm, 1, p.lanes);
  if (threadIdx.x == 0) store(out, row, 0, static_cast<float>(0.5 * fm));
}

// out = x0 * (xl . weight) + bias + xl: a layer of DCN's cross network that no pass collapsed. xl
// is read twice, the second time from cache.
__global__ void __launch_bounds__(32 * kWarpRows)
    cross_v1_kernel(std::int64_t rows, const __grid_constant__ Matrix x0,
                    const __grid_constant__ Matrix xl, const float* weight, const float* bias,
                    const __grid_constant__ Matrix out) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarpRows + threadIdx.y;
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

unsigned warp_blocks(std::int64_t rows) {
  return static_cast<unsigned>((rows + kWarpRows - 1) / kWarpRows);
}

ElementwiseLaunch cross_v1(const Operands& o) {
  return [x0 = o.inputs.at(0), xl = o.inputs.at(1), weight = o.weights.at(0),
          bias = o.weights.at(1), out = o.out](std::int64_t rows, cudaStream_t stream) {
    if (rows == 0) return;
    cross_v1_kernel<<<warp_blocks(rows), dim3(32, kWarpRows), 0, stream>>>(rows, x0, xl, weight,
                                                                           bias, out);
    DPIF_CUDA_CHECK(cudaGetLastError());
  };
}

ElementwiseLaunch fm(const Operands& o) {
  FmParams params{{}, static_cast<int>(o.inputs.size()), o.sizes.at(0), 1};
  DPIF_CHECK(params.num_inputs <= FmParams::kMaxInputs, "FM takes at most ", FmParams::kMaxInputs,
             " inputs, got ", params.num_inputs);
  std::copy(o.inputs.begin(), o.inputs.end(), params.xs);
  while (params.lanes < std::min(32, params.dim)) params.lanes *= 2;
  return [params, out = o.out](std::int64_t rows, cudaStream_t stream) {
    if (rows == 0) return;
    fm_kernel<<<warp_blocks(rows), dim3(32, kWarpRows), 0, stream>>>(rows, params, out);
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
    {"fm", fm},
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
