#include "kernels/forward.h"

#include "common/cuda_check.h"

namespace dpiframe {

DeviceForward::DeviceForward(const ForwardModel& model, DataType type) {
  const ForwardPlan plan = plan_forward(model, type);
  const auto bytes = [](const auto& v) { return v.size() * sizeof(v[0]); };
  const auto padded = [&](const auto& v) { return (bytes(v) + 255) / 256 * 256; };
  const std::size_t vectors = padded(plan.weights);
  const std::size_t fields = vectors + padded(plan.vectors);
  const std::size_t tickets = fields + padded(plan.fields);
  memory_ = DeviceBuffer(tickets + sizeof(unsigned));
  auto* memory = static_cast<char*>(memory_.get());
  const auto upload = [&](std::size_t place, const auto& v) {
    DPIF_CUDA_CHECK(cudaMemcpy(memory + place, v.data(), bytes(v), cudaMemcpyHostToDevice));
  };
  upload(0, plan.weights);
  upload(vectors, plan.vectors);
  upload(fields, plan.fields);
  DPIF_CUDA_CHECK(cudaMemset(memory + tickets, 0, sizeof(unsigned)));
  arguments_ = plan.arguments;
  arguments_.weights = memory;
  arguments_.vectors = reinterpret_cast<const float*>(memory + vectors);
  arguments_.fields = reinterpret_cast<const ForwardField*>(memory + fields);
  arguments_.tickets = reinterpret_cast<unsigned*>(memory + tickets);
  kernel_ = forward_kernel_for(type, arguments_);
}

void DeviceForward::run(std::int64_t rows, const RunInputs& inputs, cudaStream_t stream) const {
  forward_hopper(kernel_, rows, inputs, arguments_, stream);
}

}  // namespace dpiframe
