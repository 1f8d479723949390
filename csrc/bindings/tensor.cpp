// Host parts of the generic tensor operations, for tests: expressions and the merging of axes.
#include <utility>
#include <vector>

#include "bindings/families.h"
#include "bindings/numpy_args.h"
#include "kernels/tensor/axes.h"
#include "kernels/tensor/expression.h"

namespace dpiframe {
namespace {

py::tuple merge(const std::vector<int>& sizes, const std::vector<std::vector<int>>& strides) {
  const MergedAxes merged = merge_axes(sizes, strides);
  return py::make_tuple(merged.sizes, merged.strides);
}

// The columns of an operand's elements in row-major order, as a kernel finds them.
std::vector<int> columns_of(const std::vector<int>& sizes, const std::vector<int>& strides) {
  const SharedAxes shared = shared_axes(sizes, {strides});
  std::vector<int> columns;
  for (int place = 0; place < shared.axes.elements; ++place)
    columns.push_back(column_at(shared.axes, shared.strides[0], place));
  return columns;
}

py::tuple evaluate(const std::vector<ExpressionToken>& postfix, const py::array& xs) {
  const auto values = contiguous_argument<float>(xs, "xs", 2);
  std::vector<const float*> operands;
  for (py::ssize_t i = 0; i < values.shape(0); ++i) operands.push_back(values.data(i, 0));
  const MapCode code = compile_expression(postfix, static_cast<int>(operands.size()));
  return py::make_tuple(to_numpy(map_on_host(code, operands, values.shape(1))), code.num_slots);
}

}  // namespace

void bind_tensor(py::module_& module) {
  module.def("merge_axes", &merge, py::arg("sizes"), py::arg("strides"));
  module.def("operand_columns", &columns_of, py::arg("sizes"), py::arg("strides"));
  module.def("evaluate_expression", &evaluate, py::arg("postfix"), py::arg("xs"));
}

}  // namespace dpiframe
