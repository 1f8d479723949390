#include "kernels/forward_cross.h"

#include <span>

#include "kernels/forward_cross_hopper.h"

namespace dpiframe {

DeviceForwardCross::DeviceForwardCross(const ForwardCrossModel& model, DataType type) {
  const ForwardCrossPlan plan = plan_forward_cross(model, type);
  const std::vector<unsigned> tickets{0};
  memory_ =
      DeviceArrays({std::as_bytes(std::span(plan.weights)), std::as_bytes(std::span(plan.vectors)),
                    std::as_bytes(std::span(plan.lookup.fields)),
                    std::as_bytes(std::span(plan.pieces)), std::as_bytes(std::span(tickets))});
  arguments_ = plan.arguments;
  arguments_.common.weights = memory_.at(0);
  arguments_.common.vectors = static_cast<const float*>(memory_.at(1));
  arguments_.common.fields = static_cast<const ForwardField*>(memory_.at(2));
  arguments_.pieces = static_cast<const ForwardCrossPiece*>(memory_.at(3));
  arguments_.common.tickets = static_cast<unsigned*>(memory_.at(4));
  kernel_ = forward_cross_kernel_for(type, arguments_);
}

void DeviceForwardCross::run(std::int64_t rows, const RunInputs& inputs,
                             cudaStream_t stream) const {
  forward_cross_hopper(kernel_, rows, inputs, arguments_, stream);
}

}  // namespace dpiframe
