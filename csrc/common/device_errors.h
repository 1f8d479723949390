// What a device may answer that its caller can act upon; each is a RuntimeError in Python.
#pragma once

#include <stdexcept>

namespace dpiframe {

// It has too little memory. It stays usable: a smaller request may succeed.
class DeviceMemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// CUDA refuses every further call of this process, as after a kernel's bad address or a fault of
// the device: only a new process can use it.
class DeviceLostError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dpiframe
