// A whole float32 model with cross layers of the field width in one kernel, for Hopper:
// forward_cross.h has the formulas, forward_split_layout.h where things lie.
//
// A product's operands are each two float16, large and small, times a power of two: of a row of
// weights, and of a row of a quarter of activations. Of the four products of these three are made;
// that of both small ones would be 2^-22 of the whole.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/device_buffer.h"
#include "kernels/fused/cross/fused_cross.h"
#include "kernels/fused/cross_fp16x3/smem_layout.h"

namespace dpiframe {

// What a model's launches have in common, but for its place in device memory.
struct ForwardSplitPlan {
  ForwardSplitArguments arguments;
  std::vector<std::uint16_t> weights;  // bits of float16
  std::vector<float> vectors;
  std::vector<ForwardSplitPart> parts;
  std::vector<ForwardSplitField> fields;
  std::vector<RingPiece> pieces;
};

// Both are pure. std::invalid_argument where the model does not fit.
ForwardSplitForm forward_split_form_of(const ForwardCrossModel& model);
ForwardSplitPlan plan_forward_split(const ForwardCrossModel& model);

// The model on the device that is current when this is made. It works in `scratch`, which a run may
// use and nobody else meanwhile. each_thread_leaves: slower, for compute-sanitizer's racecheck.
class DeviceForwardSplit {
 public:
  DeviceForwardSplit(const ForwardCrossModel& model, int multiprocessors,
                     std::span<std::byte> scratch, bool each_thread_leaves);

  // The bytes of scratch that it needs.
  static std::size_t scratch_bytes(const ForwardCrossModel& model, int multiprocessors);

  // As DeviceForward's.
  void run(std::int64_t rows, const BatchMemory& inputs, cudaStream_t stream) const;

  std::size_t bytes() const { return memory_.bytes(); }

 private:
  DeviceArrays memory_;
  ForwardSplitArguments arguments_;
  ForwardKernel kernel_;
  int blocks_;
};

}  // namespace dpiframe
