// What the bindings of the one-kernel forward passes share.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bindings/families.h"
#include "bindings/numpy_args.h"
#include "kernels/fused/mlp/fused_mlp.h"
#include "runtime/cuda_program.h"

namespace dpiframe {

using LevelArgument = std::pair<py::array, py::object>;  // w [n, k], bias [n] or None

inline std::vector<float> float_values(const py::array& values, const std::string& name,
                                       int num_dims, py::ssize_t length = -1) {
  const auto array = contiguous_argument<float>(values, name, num_dims, length);
  return {array.data(), array.data() + array.size()};
}

inline std::vector<ForwardLevel> forward_levels(const std::vector<LevelArgument>& arguments) {
  std::vector<ForwardLevel> levels;
  for (const auto& [w, bias] : arguments) {
    ForwardLevel level{0, 0, float_values(w, "w", 2), {}};
    level.n = static_cast<int>(w.shape(0));
    level.k = static_cast<int>(w.shape(1));
    if (!bias.is_none()) level.bias = float_values(py::cast<py::array>(bias), "bias", 1, level.n);
    levels.push_back(std::move(level));
  }
  return levels;
}

// Fields that have places in x0 and no memory: for tests.
inline std::vector<DeviceLookupField> fields_without_memory(const std::vector<LookupSlot>& slots) {
  std::vector<DeviceLookupField> fields;
  for (const LookupSlot& slot : slots)
    fields.push_back(
        {nullptr, nullptr, slot.rows, slot.dim, slot.column, slot.oov_row, slot.field, slot.in_fm});
  return fields;
}

}  // namespace dpiframe
