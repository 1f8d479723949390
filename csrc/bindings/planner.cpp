#include "bindings/families.h"
#include "bindings/numpy_args.h"
#include "planner/buffer_plan.h"
#include "planner/graph.h"
#include "planner/plan.h"

namespace dpiframe {

void bind_planner(py::module_& module) {
  py::class_<Graph>(module, "Graph")
      .def(py::init<>())
      .def("add_buffer", &Graph::add_buffer, py::arg("name"), py::arg("bytes"),
           py::arg("external") = false)
      .def("add_view", &Graph::add_view, py::arg("parent"), py::arg("offset"), py::arg("bytes"))
      .def("add_step", &Graph::add_step, py::arg("name"), py::arg("reads"), py::arg("writes"),
           py::arg("cost") = 1.0)
      .def_property_readonly("num_steps", &Graph::num_steps)
      .def("edges", &Graph::edges);
  py::class_<PlannedStep>(module, "PlannedStep")
      .def_readonly("step", &PlannedStep::step)
      .def_readonly("stream", &PlannedStep::stream)
      .def_readonly("waits", &PlannedStep::waits)
      .def_readonly("record", &PlannedStep::record);
  py::class_<Plan>(module, "Plan")
      .def_property_readonly("steps", &Plan::steps)
      .def_property_readonly("num_events", &Plan::num_events)
      .def_property_readonly("num_streams", &Plan::num_streams)
      .def("__str__", &Plan::to_string);
  py::class_<BufferPlan>(module, "BufferPlan")
      .def_readonly("offsets", &BufferPlan::offsets)
      .def_readonly("arena_bytes", &BufferPlan::arena_bytes)
      .def_readonly("total_bytes", &BufferPlan::total_bytes)
      .def("__str__", &BufferPlan::to_string);
  module.def(
      "plan",
      [](const Graph& graph, int num_streams, const std::string& policy) {
        return Plan(graph, num_streams, parse_policy(policy));
      },
      py::arg("graph"), py::arg("num_streams"), py::arg("policy"));
  module.def("plan_buffers", &plan_buffers, py::arg("graph"), py::arg("plan"),
             py::arg("alignment") = 256);
}

}  // namespace dpiframe
