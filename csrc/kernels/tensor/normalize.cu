// What divides a tensor by sums over some of its axes: softmax and layer normalisation.
//
// A thread, a warp or a block of 256 threads owns the elements that share a sum (launch.cuh) and
// reads them three times, the last two from cache. Sums are float64.
//   softmax:     out = exp(x - max) / sum exp(x - max)
//   layer norm:  out = (x - mean) / sqrt(mean (x - mean)^2 + eps) * weight + bias
#include "kernels/tensor/launch.cuh"

namespace dpiframe {
namespace {

struct SoftmaxParams {
  Matrix x;
  Matrix out;
  Axes outer;
  AxisStrides outer_x;
  AxisStrides outer_out;
  Axes inner;
  AxisStrides inner_x;
  AxisStrides inner_out;
  bool guarded;
};

struct Largest {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <int kGroup>
__global__ void __launch_bounds__(kGroupThreads)
    softmax_kernel(const RowRange range, const __grid_constant__ SoftmaxParams p) {
  const std::uint32_t place = group_place<kGroup>();
  if (place >= range.places) return;  // the whole group
  const RowPlace at = row_place(range, place);
  const int column = column_at(p.outer, p.outer_x, at.place);
  const int out_column = column_at(p.outer, p.outer_out, at.place);
  const int lane = threadIdx.x % kGroup;
  // What is below a half's least number is -inf in it: a row of that alone, of which a mask leaves
  // nothing, has the same number everywhere then, as in float32.
  const float least = p.x.type == DataType::kHalf && !p.guarded ? -65504.0f : -INFINITY;
  const auto x = [&](int i) {
    const float value = load(p.x, at.row, column + column_at(p.inner, p.inner_x, i));
    return value < least ? least : value;
  };
  float largest = -INFINITY;  // a NaN makes the sum NaN below
  for (int i = lane; i < p.inner.elements; i += kGroup) largest = fmaxf(largest, x(i));
  largest = over_group<kGroup>(largest, Largest{});
  const bool is_nothing = p.guarded && largest == -INFINITY;
  if (is_nothing) largest = 0.0f;
  double sum = is_nothing && lane == 0 ? 1.0 : 0.0;
  for (int i = lane; i < p.inner.elements; i += kGroup) sum += expf(x(i) - largest);
  const float scale = static_cast<float>(1.0 / over_group<kGroup>(sum, Sum{}));
  for (int i = lane; i < p.inner.elements; i += kGroup)
    store(p.out, at.row, out_column + column_at(p.inner, p.inner_out, i),
          expf(x(i) - largest) * scale);
}

struct LayerNormParams {
  Matrix x;
  Matrix weight;  // of no data: none
  Matrix bias;
  Matrix out;
  Axes outer;
  AxisStrides outer_x;
  Axes inner;
  AxisStrides inner_x;
  AxisStrides inner_weight;
  AxisStrides inner_bias;
  double eps;
};

template <int kGroup>
__global__ void __launch_bounds__(kGroupThreads)
    layer_norm_kernel(const RowRange range, const __grid_constant__ LayerNormParams p) {
  const std::uint32_t place = group_place<kGroup>();
  if (place >= range.places) return;  // the whole group
  const RowPlace at = row_place(range, place);
  const int column = column_at(p.outer, p.outer_x, at.place);
  const int lane = threadIdx.x % kGroup;
  const int elements = p.inner.elements;
  const auto x = [&](int i) -> double {
    return load(p.x, at.row, column + column_at(p.inner, p.inner_x, i));
  };
  double sum = 0.0;
  for (int i = lane; i < elements; i += kGroup) sum += x(i);
  const double mean = over_group<kGroup>(sum, Sum{}) / elements;
  double squares = 0.0;
  for (int i = lane; i < elements; i += kGroup) squares += (x(i) - mean) * (x(i) - mean);
  const double scale = 1.0 / sqrt(over_group<kGroup>(squares, Sum{}) / elements + p.eps);
  for (int i = lane; i < elements; i += kGroup) {
    auto value = static_cast<float>((x(i) - mean) * scale);
    if (p.weight.data != nullptr)
      value *= load(p.weight, at.row, column_at(p.inner, p.inner_weight, i));
    if (p.bias.data != nullptr) value += load(p.bias, at.row, column_at(p.inner, p.inner_bias, i));
    store(p.out, at.row, static_cast<std::int64_t>(at.place) * elements + i, value);
  }
}

}  // namespace

TensorLaunch softmax_op(const SoftmaxOp& op, const TensorOperands& operands) {
  check_inputs(operands, "a softmax", 1, 1);
  const Operand& x = operands.inputs[0].operand;
  const SplitAxes read = split_axes(x.shape, x.strides, op.axes, "a softmax");
  const SplitAxes write = split_axes(x.shape, row_major(x.shape), op.axes, "a softmax");
  check_out(operands, "a softmax", elements_of(x.shape));
  const SharedAxes outer = shared_axes(read.outer_sizes, {read.outer_strides, write.outer_strides});
  const SharedAxes inner = shared_axes(read.inner_sizes, {read.inner_strides, write.inner_strides});
  const SoftmaxParams params{from_offset(operands.inputs[0]),
                             operands.out,
                             outer.axes,
                             outer.strides[0],
                             outer.strides[1],
                             inner.axes,
                             inner.strides[0],
                             inner.strides[1],
                             op.guarded};
  const bool lie_apart = outer.strides[0].of[outer.axes.count - 1] == 1;
  const int group = group_size(inner.axes.elements, lie_apart);
  return [params, group](std::int64_t rows, cudaStream_t stream) {
    in_row_ranges(rows, params.outer.elements, [&](const RowRange& range) {
      in_groups(group, range.places, [&]<int kGroup>(unsigned blocks) {
        softmax_kernel<kGroup><<<blocks, kGroupThreads, 0, stream>>>(range, params);
        DPIF_CUDA_CHECK(cudaGetLastError());
      });
    });
  };
}

TensorLaunch layer_norm_op(const LayerNormOp& op, const TensorOperands& operands) {
  check_inputs(operands, "a layer norm", 1, 3);
  const Operand& x = operands.inputs[0].operand;
  const std::size_t axes = x.shape.size();
  check_operation(op.axes >= 1 && op.axes <= static_cast<int>(axes), "a layer norm");
  check_out(operands, "a layer norm", elements_of(x.shape));
  const std::size_t first = axes - op.axes;
  const std::vector<int> sizes = between(x.shape, first, axes);
  std::vector<std::vector<int>> strides(3, between(x.strides, first, axes));
  Matrix affine[2] = {};
  for (std::size_t i = 1; i < operands.inputs.size(); ++i) {
    const TensorInput& part = operands.inputs[i];
    check_operation(part.operand.shape == sizes, "a layer norm");
    strides[i] = part.operand.strides;
    affine[i - 1] = from_offset(part);
  }
  const SharedAxes outer = shared_axes(between(x.shape, 0, first), {between(x.strides, 0, first)});
  const SharedAxes inner = shared_axes(sizes, strides);
  const LayerNormParams params{from_offset(operands.inputs[0]),
                               affine[0],
                               affine[1],
                               operands.out,
                               outer.axes,
                               outer.strides[0],
                               inner.axes,
                               inner.strides[0],
                               inner.strides[1],
                               inner.strides[2],
                               op.eps};
  const int group = group_size(inner.axes.elements, false);
  return [params, group](std::int64_t rows, cudaStream_t stream) {
    in_row_ranges(rows, params.outer.elements, [&](const RowRange& range) {
      in_groups(group, range.places, [&]<int kGroup>(unsigned blocks) {
        layer_norm_kernel<kGroup><<<blocks, kGroupThreads, 0, stream>>>(range, params);
        DPIF_CUDA_CHECK(cudaGetLastError());
      });
    });
  };
}

}  // namespace dpiframe
