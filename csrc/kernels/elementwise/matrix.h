// A matrix in device memory as elementwise steps see it: any strides, any of the three types.
#pragma once

#include <cstdint>

#include "common/precision.h"

namespace dpiframe {

// Element (r, c) is data[r * row_stride + c * column_stride].
struct Matrix {
  void* data;
  std::int64_t row_stride;
  std::int64_t column_stride;
  int width;
  DataType type;
};

}  // namespace dpiframe
