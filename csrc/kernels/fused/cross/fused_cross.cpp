#include "kernels/fused/cross/fused_cross.h"

#include <span>

#include "kernels/fused/cross/kernel.h"
#include "kernels/fused/cross_persistent/kernel.h"

namespace dpiframe {

DeviceForwardCross::DeviceForwardCross(const ForwardCrossModel& model, DataType type,
                                       std::int64_t small_rows, int multiprocessors,
                                       std::span<std::byte> scratch)
    : small_rows_(small_rows) {
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
  add_tall(model, type, multiprocessors, scratch);
}

void DeviceForwardCross::add_tall(const ForwardCrossModel& model, DataType type,
                                  int multiprocessors, std::span<std::byte> scratch) {
  const ForwardCrossForm& form = arguments_.form;
  const int most_parts = forward_tall_parts(forward_cross_shape(model));
  const int blocks = multiprocessors / 2 * 2;
  const int scratch_bytes = forward_tall_scratch_bytes(form);
  std::int64_t weights = 0;
  for (const auto& levels : {model.cross, model.deep})
    for (const ForwardLevel& level : levels) weights += std::int64_t{level.n} * level.k;
  if (!forward_tall_fits(form, most_parts) ||
      !forward_tall_pays(weights, arguments_.weight_bytes) ||  // 2 bytes each, of half of them
      static_cast<std::size_t>(blocks) * scratch_bytes > scratch.size())
    return;
  const ForwardTallShared shared = forward_tall_shared(form, most_parts);
  const auto pieces = forward_tall_pieces(form, shared.ring_bytes);
  tall_memory_ = DeviceArrays({std::as_bytes(std::span(pieces))});
  tall_ = {arguments_.common,
           form,
           shared,
           static_cast<const RingPiece*>(tall_memory_.at(0)),
           static_cast<int>(pieces.size()),
           arguments_.weight_bytes,
           forward_cross_vector_floats(form),
           scratch_bytes,
           reinterpret_cast<char*>(scratch.data())};
  tall_kernel_ = forward_tall_kernel_for(type, tall_);
  tall_blocks_ = blocks;
}

void DeviceForwardCross::run(std::int64_t rows, const BatchMemory& inputs,
                             cudaStream_t stream) const {
  if (rows <= small_rows_)
    forward_cross_hopper(kernel_, rows, inputs, arguments_, stream);
  else
    forward_tall_hopper(tall_kernel_, rows, inputs, tall_, tall_blocks_, stream);
}

}  // namespace dpiframe
