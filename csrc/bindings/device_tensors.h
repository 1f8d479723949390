// Tensors on a GPU, found by the C functions that their library offers beside DLPack (torch since
// 2.10): a batch of a few thousand rows is scored in some tens of microseconds, of which asking a
// tensor for its shape, strides, type and place in Python, one by one, takes two or three.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

namespace dpiframe {

namespace py = pybind11;

// DLTensor of DLPack 1.
struct DlTensor {
  char* data;
  std::int32_t device_type;
  std::int32_t device;
  std::int32_t num_dims;
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  const std::int64_t* shape;
  const std::int64_t* strides;  // in numbers
  std::uint64_t byte_offset;
};

// DLPackExchangeAPI of DLPack 1.3. The functions return 0, or set an error of Python.
struct DlExchange {
  std::uint32_t major;
  std::uint32_t minor;
  const void* older;
  const void* others[3];
  int (*look_at)(PyObject* tensor, DlTensor* found);
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream);
};

struct TensorMatrix {
  const void* data;
  std::int64_t stride;  // numbers from one row to the next
  int number_bytes;
};

struct TensorBatch {
  TensorMatrix ids;    // [F, B] int32 or int64
  TensorMatrix dense;  // [N, B] float32
  std::int64_t size;   // B
  void* stream;        // the library's current one
};

class DeviceTensors {
 public:
  // Tensors are instances of `type`. device -1: the host's memory, for tests.
  DeviceTensors(const py::type& type, int num_fields, int num_dense, int device)
      : type_(type), num_fields_(num_fields), num_dense_(num_dense), device_(device) {
    const py::object capsule = py::getattr(type, "__dlpack_c_exchange_api__", py::none());
    if (!PyCapsule_IsValid(capsule.ptr(), kName)) return;
    const auto* found = static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule.ptr(), kName));
    if (found->major == 1 && found->look_at != nullptr) exchange_ = found;
  }

  // Nothing where the library has no such functions or anything does not fit: who asks in Python
  // then (dpiframe_core/engine/cuda/device_arrays.py) has the words for it. What the model has not
  // is not looked at.
  std::optional<TensorBatch> find(const py::handle& ids, const py::handle& dense) const {
    TensorBatch found{};
    if (exchange_ == nullptr) return std::nullopt;
    if (num_fields_ > 0 && !find(ids, num_fields_, kInt, found.ids, found.size))
      return std::nullopt;
    std::int64_t size = found.size;
    if (num_dense_ > 0 && !find(dense, num_dense_, kFloat, found.dense, size)) return std::nullopt;
    if (num_fields_ > 0 && size != found.size) return std::nullopt;
    found.size = size;
    if (failed(exchange_->current_stream(device_type(), device(), &found.stream)))
      return std::nullopt;
    return found;
  }

 private:
  static constexpr const char* kName = "dlpack_exchange_api";
  static constexpr std::int32_t kHost = 1;
  static constexpr std::int32_t kCuda = 2;
  static constexpr std::uint8_t kInt = 0;
  static constexpr std::uint8_t kFloat = 2;

  static bool failed(int status) {
    if (status != 0) PyErr_Clear();
    return status != 0;
  }

  std::int32_t device_type() const { return device_ < 0 ? kHost : kCuda; }
  std::int32_t device() const { return device_ < 0 ? 0 : device_; }

  // The place of [rows, B], and B.
  bool find(const py::handle& value, int rows, std::uint8_t code, TensorMatrix& matrix,
            std::int64_t& size) const {
    DlTensor t{};
    if (PyObject_TypeCheck(value.ptr(), reinterpret_cast<PyTypeObject*>(type_.ptr())) == 0 ||
        failed(exchange_->look_at(value.ptr(), &t)))
      return false;
    if (t.device_type != device_type() || t.device != device()) return false;
    if (t.num_dims != 2 || t.strides == nullptr || t.shape[0] != rows) return false;
    if (t.code != code || t.lanes != 1) return false;
    if (t.bits != 32 && (t.bits != 64 || code != kInt)) return false;
    if (t.strides[1] != 1 && t.shape[1] > 1) return false;
    matrix = {t.data + t.byte_offset, t.strides[0], t.bits / 8};
    size = t.shape[1];
    return true;
  }

  py::object type_;
  int num_fields_;
  int num_dense_;
  int device_;
  const DlExchange* exchange_ = nullptr;  // lives as long as its library, which is never unloaded
};

}  // namespace dpiframe
