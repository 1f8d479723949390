// A device has too little memory: DeviceMemoryError in Python, a RuntimeError. The device stays
// usable, and less may be asked for.
#pragma once

#include <stdexcept>

namespace dpiframe {

class DeviceMemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dpiframe
