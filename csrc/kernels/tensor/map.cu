// out = expression of operands of one shape, element by element.
//
// A block of 128 threads owns 512 places of the result, a thread four of them, 128 apart: reads of
// contiguous operands and the writes are coalesced, and a thread reads an instruction once for four
// elements. Instructions and operands are tables in device memory that all threads read at the same
// place. The result of the instruction before is in registers; results that are needed later are in
// shared memory, 2 KiB each. An operand is read where an instruction needs it, again from cache.
#include "kernels/tensor/launch.cuh"

namespace dpiframe {
namespace {

constexpr int kThreads = 128;
constexpr int kWidth = 4;

struct MapOperand {
  Matrix matrix;
  AxisStrides strides;
};

struct MapParams {
  const Instruction* instructions;
  const MapOperand* operands;
  int num_instructions;
  Axes axes;
  Matrix out;
};

__global__ void __launch_bounds__(kThreads)
    map_kernel(const RowRange range, const __grid_constant__ MapParams p) {
  extern __shared__ float4 slots[];  // [num_slots, kThreads]
  RowPlace places[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const std::uint32_t place = blockIdx.x * kThreads * kWidth + i * kThreads + threadIdx.x;
    places[i] = row_place(range, min(place, range.places - 1));  // beyond the last: the last again
  }
  Values<kWidth> last{};
  const auto value = [&](const Argument& argument) -> Values<kWidth> {
    Values<kWidth> found{};
    switch (argument.kind) {
      case ArgumentKind::kOperand: {
        const MapOperand& operand = p.operands[argument.index];
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
          found.of[i] = load(operand.matrix, places[i].row,
                             column_at(p.axes, operand.strides, places[i].place));
        break;
      }
      case ArgumentKind::kNumber:
#pragma unroll
        for (int i = 0; i < kWidth; ++i) found.of[i] = argument.number;
        break;
      case ArgumentKind::kSlot: {
        const float4 kept = slots[argument.index * kThreads + threadIdx.x];
        found = {{kept.x, kept.y, kept.z, kept.w}};
        break;
      }
      case ArgumentKind::kLast:
        return last;
      case ArgumentKind::kNone:
        break;
    }
    return found;
  };
#pragma unroll 1
  for (int i = 0; i < p.num_instructions; ++i) {
    const Instruction instruction = p.instructions[i];
    const Values<kWidth> a = value(instruction.arguments[0]);
    const Values<kWidth> b = value(instruction.arguments[1]);
    const Values<kWidth> c = value(instruction.arguments[2]);
    last = apply(instruction.function, a, b, c);
    if (instruction.slot >= 0)
      slots[instruction.slot * kThreads + threadIdx.x] =
          make_float4(last.of[0], last.of[1], last.of[2], last.of[3]);
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const std::uint32_t place = blockIdx.x * kThreads * kWidth + i * kThreads + threadIdx.x;
    if (place < range.places) store(p.out, places[i].row, places[i].place, last.of[i]);
  }
}

}  // namespace

TensorLaunch map_op(const MapOp& op, const TensorOperands& operands) {
  const std::vector<int>& shape = operands.inputs[0].operand.shape;
  std::vector<std::vector<int>> strides;
  for (const TensorInput& input : operands.inputs) {
    check_operation(input.operand.shape == shape, "a map");
    strides.push_back(input.operand.strides);
  }
  check_out(operands, "a map", elements_of(shape));
  const MapCode code = compile_expression(op.expression, static_cast<int>(strides.size()));
  const SharedAxes shared = shared_axes(shape, strides);
  std::vector<MapOperand> table;
  for (std::size_t i = 0; i < operands.inputs.size(); ++i)
    table.push_back({from_offset(operands.inputs[i]), shared.strides[i]});
  const auto instructions = device_table(code.instructions);
  const auto inputs = device_table(table);
  const MapParams params{instructions.get(), inputs.get(),
                         static_cast<int>(code.instructions.size()), shared.axes, operands.out};
  const std::size_t bytes = sizeof(float4) * kThreads * code.num_slots;
  return [params, instructions, inputs, bytes](std::int64_t rows, cudaStream_t stream) {
    in_row_ranges(rows, params.out.width, [&](const RowRange& range) {
      const unsigned blocks = blocks_of(range.places, kThreads * kWidth);
      map_kernel<<<blocks, kThreads, bytes, stream>>>(range, params);
      DPIF_CUDA_CHECK(cudaGetLastError());
    });
  };
}

}  // namespace dpiframe
