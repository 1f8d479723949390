// What moves elements without computing: join, take, take_along. A thread owns an element of the
// result, neighbouring threads own neighbours, so that writes are coalesced; reads are where the
// operand's strides lead.
#include <cmath>

#include "kernels/tensor/launch.cuh"

namespace dpiframe {
namespace {

constexpr int kThreads = 256;

// An operand [outer, size] of a join, and the column that it begins at in a row of the result.
struct JoinPart {
  Matrix matrix;
  Axes axes;
  AxisStrides strides;
  int begin;
  int size;
};

struct JoinParams {
  const JoinPart* parts;
  int num_parts;
  FastDivision width;  // of a row of the result: all parts together
  Matrix out;
};

__global__ void __launch_bounds__(kThreads)
    join_kernel(const RowRange range, const __grid_constant__ JoinParams p) {
  const std::uint32_t place = blockIdx.x * kThreads + threadIdx.x;
  if (place >= range.places) return;
  const RowPlace at = row_place(range, place);
  const std::uint32_t outer = p.width.quotient(at.place);
  const auto column = static_cast<int>(at.place - outer * p.width.divisor);
  int low = 0;  // the last part that begins at or before the column
  for (int high = p.num_parts - 1; low < high;) {
    const int middle = (low + high + 1) / 2;
    if (p.parts[middle].begin <= column)
      low = middle;
    else
      high = middle - 1;
  }
  const JoinPart& part = p.parts[low];
  const std::uint32_t from = outer * part.size + column - part.begin;
  store(p.out, at.row, at.place,
        load(part.matrix, at.row, column_at(part.axes, part.strides, from)));
}

// The axes of x before and behind the one that is picked from, and what steps along that.
struct TakeParams {
  Matrix x;
  Axes outer;
  AxisStrides outer_x;
  Axes inner;
  AxisStrides inner_x;
  int step;
  const int* index;
  FastDivision taken;     // places taken
  FastDivision elements;  // of the inner axes
  Matrix out;
};

__global__ void __launch_bounds__(kThreads)
    take_kernel(const RowRange range, const __grid_constant__ TakeParams p) {
  const std::uint32_t place = blockIdx.x * kThreads + threadIdx.x;
  if (place >= range.places) return;
  const RowPlace at = row_place(range, place);
  const std::uint32_t row = p.elements.quotient(at.place);
  const std::uint32_t inner = at.place - row * p.elements.divisor;
  const std::uint32_t outer = p.taken.quotient(row);
  const std::uint32_t i = row - outer * p.taken.divisor;
  const int column = column_at(p.outer, p.outer_x, outer) + p.index[i] * p.step +
                     column_at(p.inner, p.inner_x, inner);
  store(p.out, at.row, at.place, load(p.x, at.row, column));
}

struct TakeAlongParams {
  Matrix x;
  Matrix places;
  Axes outer;
  AxisStrides outer_x;
  AxisStrides outer_places;
  int step;
  int places_step;
  int size;  // of x's last axis
  FastDivision taken;
  Matrix out;
};

__global__ void __launch_bounds__(kThreads)
    take_along_kernel(const RowRange range, const __grid_constant__ TakeAlongParams p) {
  const std::uint32_t place = blockIdx.x * kThreads + threadIdx.x;
  if (place >= range.places) return;
  const RowPlace at = row_place(range, place);
  const std::uint32_t outer = p.taken.quotient(at.place);
  const auto i = static_cast<int>(at.place - outer * p.taken.divisor);
  const float where =
      load(p.places, at.row, column_at(p.outer, p.outer_places, outer) + i * p.places_step);
  float value = NAN;  // a place outside the axis
  if (where > -1.0f && where < static_cast<float>(p.size))
    value =
        load(p.x, at.row, column_at(p.outer, p.outer_x, outer) + static_cast<int>(where) * p.step);
  store(p.out, at.row, at.place, value);
}

}  // namespace

TensorLaunch join_op(const JoinOp& op, const TensorOperands& operands) {
  std::vector<JoinPart> parts;
  int width = 0;
  for (const TensorInput& input : operands.inputs) {
    const Operand& x = input.operand;
    const int elements = elements_of(x.shape);
    check_operation(op.outer >= 1 && elements % op.outer == 0, "a join");
    const SharedAxes shared = shared_axes(x.shape, {x.strides});
    parts.push_back(
        {from_offset(input), shared.axes, shared.strides[0], width, elements / op.outer});
    width += parts.back().size;
    check_operation(width <= operands.out.width, "a join");
  }
  check_out(operands, "a join", static_cast<std::int64_t>(width) * op.outer);
  const auto table = device_table(parts);
  const JoinParams params{table.get(), static_cast<int>(parts.size()), FastDivision(width),
                          operands.out};
  return [params, table](std::int64_t rows, cudaStream_t stream) {
    in_row_ranges(rows, params.out.width, [&](const RowRange& range) {
      join_kernel<<<blocks_of(range.places, kThreads), kThreads, 0, stream>>>(range, params);
      DPIF_CUDA_CHECK(cudaGetLastError());
    });
  };
}

TensorLaunch take_op(const TakeOp& op, const TensorOperands& operands) {
  check_inputs(operands, "a take", 1, 1);
  const Operand& x = operands.inputs[0].operand;
  const int rank = static_cast<int>(x.shape.size());
  check_operation(op.behind >= 0 && op.behind < rank && !op.index.empty(), "a take");
  const std::size_t axis = x.shape.size() - 1 - op.behind;
  for (const int place : op.index)
    DPIF_CHECK(place >= 0 && place < x.shape[axis], "a take of place ", place, " of an axis of ",
               x.shape[axis]);
  const SharedAxes outer = shared_axes(between(x.shape, 0, axis), {between(x.strides, 0, axis)});
  const SharedAxes inner = shared_axes(between(x.shape, axis + 1, x.shape.size()),
                                       {between(x.strides, axis + 1, x.shape.size())});
  check_out(operands, "a take",
            static_cast<std::int64_t>(outer.axes.elements) * op.index.size() * inner.axes.elements);
  const auto table = device_table(op.index);
  const TakeParams params{from_offset(operands.inputs[0]),
                          outer.axes,
                          outer.strides[0],
                          inner.axes,
                          inner.strides[0],
                          x.strides[axis],
                          table.get(),
                          FastDivision(static_cast<std::uint32_t>(op.index.size())),
                          FastDivision(inner.axes.elements),
                          operands.out};
  return [params, table](std::int64_t rows, cudaStream_t stream) {
    in_row_ranges(rows, params.out.width, [&](const RowRange& range) {
      take_kernel<<<blocks_of(range.places, kThreads), kThreads, 0, stream>>>(range, params);
      DPIF_CUDA_CHECK(cudaGetLastError());
    });
  };
}

TensorLaunch take_along_op(const TakeAlongOp& op, const TensorOperands& operands) {
  check_inputs(operands, "a take along an axis", 2, 2);
  const TensorInput& from = operands.inputs[op.places_first ? 1 : 0];
  const TensorInput& at = operands.inputs[op.places_first ? 0 : 1];
  const Operand& x = from.operand;
  const Operand& places = at.operand;
  check_operation(!x.shape.empty() && x.shape.size() == places.shape.size(),
                  "a take along an axis");
  const std::size_t last = x.shape.size() - 1;
  const std::vector<int> sizes = between(x.shape, 0, last);
  check_operation(sizes == between(places.shape, 0, last), "a take along an axis");
  const SharedAxes outer =
      shared_axes(sizes, {between(x.strides, 0, last), between(places.strides, 0, last)});
  check_out(operands, "a take along an axis", elements_of(places.shape));
  const TakeAlongParams params{
      from_offset(from),     from_offset(at),  outer.axes,
      outer.strides[0],      outer.strides[1], x.strides.back(),
      places.strides.back(), x.shape.back(),   FastDivision(places.shape.back()),
      operands.out};
  return [params](std::int64_t rows, cudaStream_t stream) {
    in_row_ranges(rows, params.out.width, [&](const RowRange& range) {
      take_along_kernel<<<blocks_of(range.places, kThreads), kThreads, 0, stream>>>(range, params);
      DPIF_CUDA_CHECK(cudaGetLastError());
    });
  };
}

}  // namespace dpiframe
