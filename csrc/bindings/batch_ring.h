// What other bindings need of a BatchRing that Python holds.
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/batch_ring.h"

namespace dpiframe {

BatchRing& ring_of(const pybind11::object& ring);

}  // namespace dpiframe
