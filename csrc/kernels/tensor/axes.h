// Axes of a sample's tensor, as kernels walk them: neighbours that every operand steps through as
// through one axis are merged, so that most tensors have one axis or two.
#pragma once

#include <vector>

#include "common/fast_division.h"

namespace dpiframe {

constexpr int kMaxAxes = 8;  // after merging

struct MergedAxes {
  std::vector<int> sizes;                 // at least one
  std::vector<std::vector<int>> strides;  // of each operand
};

// Axes of `sizes`, whose steps in each operand are `strides`, outermost first. ValueError: more
// than kMaxAxes are left.
MergedAxes merge_axes(const std::vector<int>& sizes, const std::vector<std::vector<int>>& strides);

// How a place in the row-major order of all elements is taken apart.
struct Axes {
  FastDivision sizes[kMaxAxes];
  int count = 1;
  int elements = 1;  // of all axes together
};

// An operand's step along each axis.
struct AxisStrides {
  int of[kMaxAxes] = {};
};

// Axes that several operands share.
struct SharedAxes {
  Axes axes;
  std::vector<AxisStrides> strides;  // of each operand
};

SharedAxes shared_axes(const std::vector<int>& sizes, const std::vector<std::vector<int>>& strides);

// Steps through a tensor whose elements lie one after another.
std::vector<int> row_major(const std::vector<int>& sizes);

// The columns from an operand's first element to the one at `place`, which is below axes.elements.
DPIF_HOST_DEVICE int column_at(const Axes& axes, const AxisStrides& strides, std::uint32_t place) {
  int column = 0;
  for (int axis = axes.count - 1; axis > 0; --axis) {
    const std::uint32_t rest = axes.sizes[axis].quotient(place);
    column += static_cast<int>(place - rest * axes.sizes[axis].divisor) * strides.of[axis];
    place = rest;
  }
  return column + static_cast<int>(place) * strides.of[0];
}

}  // namespace dpiframe
