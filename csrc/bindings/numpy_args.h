// What the bindings need to take numpy arrays as raw pointers: checks of type, shape and strides.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/check.h"
#include "kernels/embedding/multi_table_lookup.h"
#include "kernels/embedding/rows_of_ids.h"

namespace dpiframe {

namespace py = pybind11;

template <class T>
using Array = py::array_t<T, 0>;

inline std::string describe(const py::array& array) {
  std::string shape;
  for (py::ssize_t d = 0; d < array.ndim(); ++d)
    shape += (d > 0 ? ", " : "") + std::to_string(array.shape(d));
  return py::str(array.dtype()).cast<std::string>() + " [" + shape + "]";
}

// A contiguous array of T with the given number of dimensions; -1 in `length` takes any.
template <class T>
Array<T> contiguous_argument(const py::handle& value, const std::string& name, int num_dims,
                             py::ssize_t length = -1) {
  DPIF_CHECK(py::isinstance<py::array>(value), name, " must be a numpy array");
  const auto array = py::reinterpret_borrow<py::array>(value);
  DPIF_CHECK(py::isinstance<Array<T>>(array) && array.ndim() == num_dims &&
                 (array.flags() & py::array::c_style) != 0,
             name, " must be contiguous ", py::str(py::dtype::of<T>()).cast<std::string>(),
             " with ", num_dims, " dimension(s), got ", describe(array));
  DPIF_CHECK(length < 0 || array.shape(0) == length, name, " must have length ", length, ", got ",
             array.shape(0));
  return py::reinterpret_borrow<Array<T>>(array);
}

template <class T>
T* writable_argument(const std::optional<py::array>& value, const std::string& name,
                     py::ssize_t length) {
  if (!value.has_value()) return nullptr;
  Array<T> array = contiguous_argument<T>(*value, name, 1, length);
  DPIF_CHECK(array.writeable(), name, " must be writable");
  return array.mutable_data();
}

// The columns of ids and what keeps their memory alive.
struct IdColumns {
  std::vector<IdColumn> columns;
  std::vector<py::array> owners;
  py::ssize_t size = 0;  // B
  bool one_array = false;
};

// The rows of one array.
inline std::vector<IdColumn> matrix_columns(const py::array& matrix, bool is_int64) {
  std::vector<IdColumn> columns;
  for (py::ssize_t r = 0; r < matrix.shape(0); ++r)
    columns.push_back({static_cast<const char*>(matrix.data()) + r * matrix.strides(0),
                       matrix.strides(1), is_int64});
  return columns;
}

inline IdColumns id_columns(const py::sequence& ids) {
  IdColumns result;
  if (py::isinstance<py::array>(ids)) {
    auto array = py::reinterpret_borrow<py::array>(ids);
    const bool is_int64 = py::isinstance<Array<std::int64_t>>(array);
    DPIF_CHECK((is_int64 || py::isinstance<Array<std::int32_t>>(array)) && array.ndim() == 2,
               "ids must be int32 or int64 [F, B], got ", describe(array));
    result.columns = matrix_columns(array, is_int64);
    result.size = array.shape(1);
    result.one_array = true;
    result.owners.push_back(std::move(array));
    return result;
  }
  for (std::size_t f = 0; f < ids.size(); ++f) {
    const py::object item = ids[f];
    DPIF_CHECK(py::isinstance<py::array>(item), "ids must be numpy arrays (field ", f, ")");
    auto array = py::reinterpret_borrow<py::array>(item);
    const bool is_int64 = py::isinstance<Array<std::int64_t>>(array);
    DPIF_CHECK((is_int64 || py::isinstance<Array<std::int32_t>>(array)) && array.ndim() == 1,
               "ids must be int32 or int64 with one dimension, got ", describe(array), " (field ",
               f, ")");
    if (f == 0) result.size = array.shape(0);
    DPIF_CHECK(array.shape(0) == result.size, "ids must have one length, got ", array.shape(0),
               " and ", result.size, " (fields ", f, " and 0)");
    result.columns.push_back({array.data(), array.strides(0), is_int64});
    result.owners.push_back(std::move(array));
  }
  return result;
}

// Rows, period, least and last id of a field; a period of 0: none repeat.
using FieldIdsTuple = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

inline std::vector<FieldIds> field_ids(const std::vector<FieldIdsTuple>& fields) {
  std::vector<FieldIds> found;
  for (const auto& [rows, period, least, last] : fields)
    found.push_back({rows, period, least, last});
  return found;
}

template <class T>
py::array_t<T> to_numpy(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

}  // namespace dpiframe
