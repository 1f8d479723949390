// The one-kernel forward pass: models that it takes, and how one is laid out for it.
#include <utility>

#include "bindings.h"
#include "common/numpy_args.h"
#include "kernels/forward.h"
#include "scheduler/cuda_program.h"

namespace dpiframe {
namespace {

using LevelArgument = std::pair<py::array, py::object>;  // w [n, k], bias [n] or None

std::vector<float> floats(const py::array& values, const std::string& name, int num_dims,
                          py::ssize_t length = -1) {
  const auto array = contiguous_argument<float>(values, name, num_dims, length);
  return {array.data(), array.data() + array.size()};
}

ForwardModel forward_model(const std::vector<LevelArgument>& levels, std::vector<float> shifts,
                           bool has_cross, const py::array& head, float bias,
                           std::int64_t num_ids) {
  ForwardModel model{};
  for (const auto& [w, level_bias] : levels) {
    ForwardLevel level{0, 0, floats(w, "w", 2), {}};
    level.n = static_cast<int>(w.shape(0));
    level.k = static_cast<int>(w.shape(1));
    if (!level_bias.is_none())
      level.bias = floats(py::cast<py::array>(level_bias), "bias", 1, level.n);
    model.levels.push_back(std::move(level));
  }
  model.shifts = std::move(shifts);
  model.has_cross = has_cross;
  model.head = floats(head, "head", 1);
  model.bias = bias;
  model.num_ids = num_ids;
  return model;
}

// A plan of fields that have places in x0 and no memory: for tests.
py::dict plan(ForwardModel model, const std::vector<LookupSlot>& slots,
              const std::string& precision) {
  for (const LookupSlot& slot : slots)
    model.fields.push_back(
        {nullptr, nullptr, slot.rows, slot.dim, slot.column, slot.oov_row, slot.field, slot.in_fm});
  const ForwardPlan plan = plan_forward(model, activation_type(parse_precision(precision)));
  const ForwardArguments& a = plan.arguments;
  py::dict found;
  found["weights"] = to_numpy(plan.weights);
  found["vectors"] = to_numpy(plan.vectors);
  found["x_columns"] = plan.x_columns;
  found["chunks"] = std::vector<int>(a.chunks, a.chunks + 2);
  found["first_extra"] = std::vector<int>(a.first_extra, a.first_extra + 5);
  found["tile"] = a.tile;
  return found;
}

bool fits(std::vector<std::int64_t> dims, std::vector<int> columns, int num_shifts, bool has_cross,
          int num_fm, std::int64_t num_ids, std::int64_t most_rows) {
  return forward_fits(
      {std::move(dims), std::move(columns), num_shifts, has_cross, num_fm, num_ids, most_rows});
}

}  // namespace

void bind_forward(py::module_& module) {
  module.def("forward_fits", &fits, py::arg("dims"), py::arg("columns"), py::arg("num_shifts"),
             py::arg("has_cross"), py::arg("num_fm"), py::arg("num_ids"), py::arg("most_rows"));
  module.def("forward_max_rows", &forward_max_rows, py::arg("compute_capability_major"),
             py::arg("multiprocessors"));
  py::class_<ForwardModel>(module, "ForwardModel")
      .def(py::init(&forward_model), py::arg("levels"), py::arg("shifts"), py::arg("has_cross"),
           py::arg("head"), py::arg("bias"), py::arg("num_ids"))
      .def("plan", &plan, py::arg("slots"), py::arg("precision"));
}

}  // namespace dpiframe
