#include "common/host_memory.h"

#include "bindings/families.h"

namespace dpiframe {

namespace py = pybind11;

void bind_host_memory(py::module_& module) {
  py::class_<HostMemory>(module, "HostMemory", py::buffer_protocol())
      .def(py::init<std::size_t>(), py::arg("bytes"))
      .def_buffer([](HostMemory& memory) {
        return py::buffer_info(static_cast<std::uint8_t*>(memory.get()),
                               static_cast<py::ssize_t>(memory.bytes()));
      })
      .def("lock", &HostMemory::lock, py::call_guard<py::gil_scoped_release>());
}

}  // namespace dpiframe
