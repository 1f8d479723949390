#include "kernels/tensor/tensor_op.h"

#include "common/check.h"
#include "kernels/tensor/launch.h"

namespace dpiframe {
namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 24;       // of one sample's tensor
constexpr std::int64_t kMaxNumbers = (std::int64_t{1} << 31) - 1;  // of a constant

// The operand reads inside its source.
void check_operand(const TensorInput& input) {
  const Operand& o = input.operand;
  DPIF_CHECK(o.shape.size() == o.strides.size(), "an operand has ", o.shape.size(), " axes, but ",
             o.strides.size(), " strides");
  const std::int64_t most = input.source.row_stride == 0 ? kMaxNumbers : kMaxElements;
  std::int64_t elements = 1;
  std::int64_t last = o.offset;
  for (std::size_t axis = 0; axis < o.shape.size(); ++axis) {
    DPIF_CHECK(o.shape[axis] >= 1 && o.strides[axis] >= 0, "an operand has ", o.shape[axis],
               " elements with stride ", o.strides[axis]);
    elements *= o.shape[axis];
    last += static_cast<std::int64_t>(o.shape[axis] - 1) * o.strides[axis];
    DPIF_CHECK(elements <= most, "an operand has more than ", most, " elements");
    DPIF_CHECK(last < input.source.width, "an operand reads column ", last, " of ",
               input.source.width);
  }
  DPIF_CHECK(o.offset >= 0 && last < input.source.width, "an operand reads column ", last, " of ",
             input.source.width);
}

struct Make {
  const TensorOperands& operands;
  TensorLaunch operator()(const MapOp& op) const { return map_op(op, operands); }
  TensorLaunch operator()(const ReduceOp& op) const { return reduce_op(op, operands); }
  TensorLaunch operator()(const SoftmaxOp& op) const { return softmax_op(op, operands); }
  TensorLaunch operator()(const LayerNormOp& op) const { return layer_norm_op(op, operands); }
  TensorLaunch operator()(const MatMulOp& op) const { return matmul_op(op, operands); }
  TensorLaunch operator()(const JoinOp& op) const { return join_op(op, operands); }
  TensorLaunch operator()(const TakeOp& op) const { return take_op(op, operands); }
  TensorLaunch operator()(const TopKOp& op) const { return top_k_op(op, operands); }
  TensorLaunch operator()(const TakeAlongOp& op) const { return take_along_op(op, operands); }
  TensorLaunch operator()(const FmOp&) const {
    throw std::invalid_argument("FM is a step of its own on a GPU");
  }
};

}  // namespace

TensorLaunch tensor_op(const TensorOp& op, const TensorOperands& operands) {
  DPIF_CHECK(!operands.inputs.empty(), "a tensor operation needs an operand");
  for (const TensorInput& input : operands.inputs) check_operand(input);
  DPIF_CHECK(operands.out.width >= 1 && operands.out.width <= kMaxElements,
             "a tensor operation writes 1 to ", kMaxElements, " columns, got ", operands.out.width);
  return std::visit(Make{operands}, op);
}

}  // namespace dpiframe
