// out = sum, mean, product, largest or smallest over axes of one operand.
//
// A thread, a warp or a block of 256 threads owns a result, by how many elements it has
// (launch.cuh). Each element is read once. Sums are float64: on the way they would lose more than
// float32 keeps of the result where thousands of elements cancel. NaN makes the result NaN.
#include "kernels/tensor/launch.cuh"

namespace dpiframe {
namespace {

enum class Reduction { kSum, kMean, kProd, kMax, kMin };

struct ReduceParams {
  Matrix x;
  Axes outer;
  AxisStrides outer_strides;
  Axes inner;
  AxisStrides inner_strides;
  Reduction reduction;
  Matrix out;
};

struct Reduced {
  Reduction reduction;
  __device__ double first() const {
    switch (reduction) {
      case Reduction::kProd:
        return 1.0;
      case Reduction::kMax:
        return -INFINITY;
      case Reduction::kMin:
        return INFINITY;
      default:
        return 0.0;
    }
  }
  __device__ double operator()(double a, double b) const {
    switch (reduction) {
      case Reduction::kProd:
        return a * b;
      case Reduction::kMax:
        return a > b || a != a ? a : b;
      case Reduction::kMin:
        return a < b || a != a ? a : b;
      default:
        return a + b;
    }
  }
};

template <int kGroup>
__global__ void __launch_bounds__(kGroupThreads)
    reduce_kernel(const RowRange range, const __grid_constant__ ReduceParams p) {
  const std::uint32_t place = group_place<kGroup>();
  if (place >= range.places) return;  // the whole group
  const RowPlace at = row_place(range, place);
  const int column = column_at(p.outer, p.outer_strides, at.place);
  const Reduced combine{p.reduction};
  double result = combine.first();
  for (int i = threadIdx.x % kGroup; i < p.inner.elements; i += kGroup)
    result = combine(result, load(p.x, at.row, column + column_at(p.inner, p.inner_strides, i)));
  result = over_group<kGroup>(result, combine);
  if (p.reduction == Reduction::kMean) result /= p.inner.elements;
  if (threadIdx.x % kGroup == 0) store(p.out, at.row, at.place, static_cast<float>(result));
}

Reduction parse_reduction(const std::string& name) {
  if (name == "sum") return Reduction::kSum;
  if (name == "mean") return Reduction::kMean;
  if (name == "prod") return Reduction::kProd;
  if (name == "max") return Reduction::kMax;
  DPIF_CHECK(name == "min", "a reduction is sum, mean, prod, max or min, got ", name);
  return Reduction::kMin;
}

}  // namespace

TensorLaunch reduce_op(const ReduceOp& op, const TensorOperands& operands) {
  check_inputs(operands, "a reduction", 1, 1);
  const Operand& x = operands.inputs[0].operand;
  const SplitAxes split = split_axes(x.shape, x.strides, op.axes, "a reduction");
  check_out(operands, "a reduction", elements_of(split.outer_sizes));
  const SharedAxes outer = shared_axes(split.outer_sizes, {split.outer_strides});
  const SharedAxes inner = shared_axes(split.inner_sizes, {split.inner_strides});
  const ReduceParams params{
      from_offset(operands.inputs[0]), outer.axes,  outer.strides[0], inner.axes, inner.strides[0],
      parse_reduction(op.function),    operands.out};
  const bool lie_apart = outer.strides[0].of[outer.axes.count - 1] == 1;
  const int group = group_size(inner.axes.elements, lie_apart);
  return [params, group](std::int64_t rows, cudaStream_t stream) {
    in_row_ranges(rows, params.out.width, [&](const RowRange& range) {
      in_groups(group, range.places, [&]<int kGroup>(unsigned blocks) {
        reduce_kernel<kGroup><<<blocks, kGroupThreads, 0, stream>>>(range, params);
        DPIF_CUDA_CHECK(cudaGetLastError());
      });
    });
  };
}

}  // namespace dpiframe
