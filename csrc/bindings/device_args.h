// What the bindings need to take arrays on a CUDA device: anything with __cuda_array_interface__
// (torch, CuPy, Numba have it).
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"

namespace dpiframe {

namespace py = pybind11;

struct DeviceArray {
  DeviceArray(const py::object& array, const std::string& name, const std::string& types,
              std::size_t num_dims)
      : owner(array) {
    DPIF_CHECK(py::hasattr(array, "__cuda_array_interface__"), name,
               " must be an array on a CUDA device");
    const py::dict view = array.attr("__cuda_array_interface__");
    type = view["typestr"].cast<std::string>();
    shape = view["shape"].cast<std::vector<std::int64_t>>();
    DPIF_CHECK(types.find(type) != std::string::npos && shape.size() == num_dims, name,
               " must be of type ", types, " with ", num_dims, " dimension(s), got ", type,
               " with ", shape.size());
    data = view["data"].cast<std::pair<std::uintptr_t, bool>>().first;
    const auto bytes = std::stoll(type.substr(2));
    stride = num_dims == 2 ? shape[1] : 1;
    if (!view.contains("strides") || view["strides"].is_none()) return;
    const auto strides = view["strides"].cast<std::vector<std::int64_t>>();
    DPIF_CHECK(shape.back() <= 1 || strides.back() == bytes, name,
               " must be contiguous along its last dimension");
    if (num_dims == 2) stride = strides[0] / bytes;
  }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }

  py::object owner;
  std::string type;
  std::vector<std::int64_t> shape;
  std::uintptr_t data = 0;
  std::int64_t stride = 0;  // elements from one row to the next
};

inline DeviceArray vector_of(const py::object& array, const std::string& name,
                             const std::string& type, std::int64_t length) {
  DeviceArray result(array, name, type, 1);
  DPIF_CHECK(result.shape[0] == length, name, " must have length ", length, ", got ",
             result.shape[0]);
  return result;
}

}  // namespace dpiframe
