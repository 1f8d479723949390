#include "kernels/fused/cross_fp16x3/fused_cross_fp16x3.h"

#include "common/check.h"
#include "kernels/fused/cross_fp16x3/kernel.h"

namespace dpiframe {
namespace {

// Clusters of two, each multiprocessor a block.
int blocks_of(int multiprocessors) {
  return multiprocessors / 2 * 2;
}

}  // namespace

DeviceForwardSplit::DeviceForwardSplit(const ForwardCrossModel& model, int multiprocessors,
                                       std::span<std::byte> scratch, bool each_thread_leaves)
    : blocks_(blocks_of(multiprocessors)) {
  const ForwardSplitPlan plan = plan_forward_split(model);
  const std::size_t needed = scratch_bytes(model, multiprocessors);
  DPIF_CHECK(blocks_ > 0, "one kernel needs 2 multiprocessors, got ", multiprocessors);
  DPIF_CHECK(scratch.size() >= needed, "one kernel needs ", needed, " bytes to work in, got ",
             scratch.size());
  const std::vector<unsigned> tickets{0};
  memory_ =
      DeviceArrays({std::as_bytes(std::span(plan.weights)), std::as_bytes(std::span(plan.vectors)),
                    std::as_bytes(std::span(plan.parts)), std::as_bytes(std::span(plan.fields)),
                    std::as_bytes(std::span(plan.pieces)), std::as_bytes(std::span(tickets))});
  arguments_ = plan.arguments;
  arguments_.weights = memory_.at(0);
  arguments_.vectors = static_cast<const float*>(memory_.at(1));
  arguments_.parts = static_cast<const ForwardSplitPart*>(memory_.at(2));
  arguments_.fields = static_cast<const ForwardSplitField*>(memory_.at(3));
  arguments_.pieces = static_cast<const RingPiece*>(memory_.at(4));
  arguments_.tickets = static_cast<unsigned*>(memory_.at(5));
  arguments_.scratch = reinterpret_cast<char*>(scratch.data());
  kernel_ = forward_split_kernel_for(arguments_, each_thread_leaves);
}

std::size_t DeviceForwardSplit::scratch_bytes(const ForwardCrossModel& model, int multiprocessors) {
  const ForwardSplitForm form = forward_split_form_of(model);
  return static_cast<std::size_t>(blocks_of(multiprocessors)) * forward_split_scratch_bytes(form);
}

void DeviceForwardSplit::run(std::int64_t rows, const BatchMemory& inputs,
                             cudaStream_t stream) const {
  forward_split_hopper(kernel_, rows, inputs, arguments_, blocks_, stream);
}

}  // namespace dpiframe
