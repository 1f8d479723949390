// Memory that Python holds: of the host, and where tensors on a GPU lie.
#include <tuple>

#include "bindings/device_tensors.h"
#include "bindings/families.h"
#include "cuda/host_memory.h"

namespace dpiframe {
namespace {

// Address, stride, bytes of a number.
std::tuple<std::uintptr_t, std::int64_t, int> plain(const TensorMatrix& matrix) {
  return {reinterpret_cast<std::uintptr_t>(matrix.data), matrix.stride, matrix.number_bytes};
}

py::object matrices(const DeviceTensors& tensors, const py::object& ids, const py::object& dense) {
  const auto found = tensors.find(ids, dense);
  if (!found.has_value()) return py::none();
  return py::make_tuple(plain(found->ids), plain(found->dense), found->size);
}

}  // namespace

void bind_memory(py::module_& module) {
  py::class_<HostMemory>(module, "HostMemory", py::buffer_protocol())
      .def(py::init<std::size_t>(), py::arg("bytes"))
      .def_buffer([](HostMemory& memory) {
        return py::buffer_info(static_cast<std::uint8_t*>(memory.get()),
                               static_cast<py::ssize_t>(memory.bytes()));
      })
      .def("lock", &HostMemory::lock, py::call_guard<py::gil_scoped_release>());
  py::class_<DeviceTensors>(module, "DeviceTensors")
      .def(py::init<const py::type&, int, int, int>(), py::arg("type"), py::arg("num_fields"),
           py::arg("num_dense"), py::arg("device"))
      .def("matrices", &matrices, py::arg("ids"), py::arg("dense"));
}

}  // namespace dpiframe
