// The generic tensor operations: what a program adds, and single ones over device memory for tests.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bindings/families.h"
#include "cuda/cuda_check.h"
#include "kernels/tensor/tensor_op.h"

namespace dpiframe {
namespace {

namespace py = pybind11;

DataType parse_type(const std::string& name) {
  if (name == "float32") return DataType::kFloat;
  if (name == "float16") return DataType::kHalf;
  DPIF_CHECK(name == "bfloat16", "a type is float32, float16 or bfloat16, got ", name);
  return DataType::kBfloat16;
}

struct DeviceMatrix {
  DeviceMatrix(std::uintptr_t address, std::int64_t row_stride, int width, const std::string& type)
      : matrix{reinterpret_cast<void*>(address), row_stride, 1, width, parse_type(type)} {}
  Matrix matrix;
};

void run(const TensorOp& op, const std::vector<DeviceMatrix>& sources,
         const std::vector<Operand>& operands, const DeviceMatrix& out, std::int64_t rows,
         std::uintptr_t stream) {
  DPIF_CHECK(sources.size() == operands.size(), "there are ", sources.size(), " matrices for ",
             operands.size(), " operands");
  TensorOperands read{{}, out.matrix};
  for (std::size_t i = 0; i < sources.size(); ++i)
    read.inputs.push_back({sources[i].matrix, operands[i]});
  const TensorLaunch launch = tensor_op(op, read);
  const auto cuda_stream = reinterpret_cast<cudaStream_t>(stream);
  launch(rows, cuda_stream);
  DPIF_CUDA_CHECK(cudaStreamSynchronize(cuda_stream));  // before its tables are freed
}

}  // namespace

void bind_tensor_cuda(py::module_& module) {
  py::class_<DeviceMatrix>(module, "DeviceMatrix")
      .def(py::init<std::uintptr_t, std::int64_t, int, std::string>(), py::arg("address"),
           py::arg("row_stride"), py::arg("width"), py::arg("type"));
  module.def("tensor_op", &run, py::arg("op"), py::arg("sources"), py::arg("operands"),
             py::arg("out"), py::arg("rows"), py::arg("stream") = 0);
}

}  // namespace dpiframe
