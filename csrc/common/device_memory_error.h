// The device has too little memory: DeviceMemoryError in Python, a RuntimeError. The device stays
// usable: a smaller request may succeed.
#pragma once

#include <stdexcept>

namespace dpiframe {

class DeviceMemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dpiframe
