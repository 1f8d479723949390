#include "kernels/fused/mlp/fused_mlp.h"

#include <span>

namespace dpiframe {

DeviceForward::DeviceForward(const ForwardModel& model, DataType type) {
  const ForwardPlan plan = plan_forward(model, type);
  const std::vector<unsigned> tickets{0};
  memory_ = DeviceArrays(
      {std::as_bytes(std::span(plan.weights)), std::as_bytes(std::span(plan.vectors)),
       std::as_bytes(std::span(plan.lookup.fields)), std::as_bytes(std::span(tickets))});
  arguments_ = plan.arguments;
  arguments_.weights = memory_.at(0);
  arguments_.vectors = static_cast<const float*>(memory_.at(1));
  arguments_.fields = static_cast<const ForwardField*>(memory_.at(2));
  arguments_.tickets = static_cast<unsigned*>(memory_.at(3));
  kernel_ = forward_kernel_for(type, arguments_);
}

void DeviceForward::run(std::int64_t rows, const BatchMemory& inputs, cudaStream_t stream) const {
  forward_hopper(kernel_, rows, inputs, arguments_, stream);
}

}  // namespace dpiframe
