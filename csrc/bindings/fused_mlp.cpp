// The one-kernel forward pass: models that it takes, and how one is laid out for it.
#include <utility>

#include "bindings/fused.h"

namespace dpiframe {
namespace {

ForwardModel forward_model(const std::vector<LevelArgument>& levels, std::vector<float> shifts,
                           bool has_cross, const py::array& head, float bias,
                           std::int64_t num_ids) {
  ForwardModel model{};
  model.levels = forward_levels(levels);
  model.shifts = std::move(shifts);
  model.has_cross = has_cross;
  model.head = float_values(head, "head", 1);
  model.bias = bias;
  model.num_ids = num_ids;
  return model;
}

// A plan of fields that have places in x0 and no memory: for tests.
py::dict plan(ForwardModel model, const std::vector<LookupSlot>& slots,
              const std::string& precision) {
  model.fields = fields_without_memory(slots);
  const ForwardPlan plan = plan_forward(model, activation_type(parse_precision(precision)));
  const ForwardArguments& a = plan.arguments;
  py::dict found;
  found["weights"] = to_numpy(plan.weights);
  found["vectors"] = to_numpy(plan.vectors);
  found["x_columns"] = plan.lookup.x_columns;
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
