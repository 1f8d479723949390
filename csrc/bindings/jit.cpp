// The compiler of kernels at load.
#include "bindings/families.h"
#include "bindings/numpy_args.h"
#include "jit/nvrtc.h"

namespace dpiframe {
namespace {

py::bytes compile(const Nvrtc& nvrtc, const std::string& source, const std::string& name,
                  const std::vector<std::string>& options) {
  std::string cubin;
  {
    const py::gil_scoped_release release;
    cubin = nvrtc.compile(source, name, options);
  }
  return cubin;
}

}  // namespace

void bind_jit(py::module_& module) {
  module.def("embedded_headers", &embedded_headers);
  py::class_<Nvrtc>(module, "Nvrtc")
      .def(py::init<std::string>(), py::arg("path"))
      .def_property_readonly("version", &Nvrtc::version)
      .def("compile", &compile, py::arg("source"), py::arg("name"), py::arg("options"));
}

}  // namespace dpiframe
