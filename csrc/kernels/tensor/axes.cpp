#include "kernels/tensor/axes.h"

#include <algorithm>
#include <cstddef>

#include "common/check.h"

namespace dpiframe {
namespace {

// Whether each operand steps through axis `outer` and the one that follows as through one axis.
bool are_one(const MergedAxes& axes, const std::vector<std::vector<int>>& strides, int size,
             std::size_t inner) {
  for (std::size_t i = 0; i < strides.size(); ++i)
    if (axes.strides[i].back() != static_cast<std::int64_t>(size) * strides[i][inner]) return false;
  return true;
}

}  // namespace

MergedAxes merge_axes(const std::vector<int>& sizes, const std::vector<std::vector<int>>& strides) {
  MergedAxes merged;
  merged.strides.resize(strides.size());
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    if (sizes[axis] == 1) continue;
    const bool one = !merged.sizes.empty() && are_one(merged, strides, sizes[axis], axis);
    if (one)
      merged.sizes.back() *= sizes[axis];
    else
      merged.sizes.push_back(sizes[axis]);
    for (std::size_t i = 0; i < strides.size(); ++i) {
      if (one) merged.strides[i].pop_back();
      merged.strides[i].push_back(strides[i][axis]);
    }
  }
  if (merged.sizes.empty()) {
    merged.sizes.push_back(1);
    for (auto& steps : merged.strides) steps.push_back(0);
  }
  DPIF_CHECK(merged.sizes.size() <= kMaxAxes, "a tensor operation has ", merged.sizes.size(),
             " axes that cannot be merged, more than the ", kMaxAxes, " that a GPU takes");
  return merged;
}

SharedAxes shared_axes(const std::vector<int>& sizes,
                       const std::vector<std::vector<int>>& strides) {
  const MergedAxes merged = merge_axes(sizes, strides);
  SharedAxes shared;
  shared.axes.count = static_cast<int>(merged.sizes.size());
  for (int axis = 0; axis < shared.axes.count; ++axis) {
    shared.axes.sizes[axis] = FastDivision(merged.sizes[axis]);
    shared.axes.elements *= merged.sizes[axis];
  }
  for (const std::vector<int>& steps : merged.strides) {
    shared.strides.emplace_back();
    std::copy(steps.begin(), steps.end(), shared.strides.back().of);
  }
  return shared;
}

std::vector<int> row_major(const std::vector<int>& sizes) {
  std::vector<int> strides(sizes.size());
  int step = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    strides[axis] = step;
    step *= sizes[axis];
  }
  return strides;
}

}  // namespace dpiframe
