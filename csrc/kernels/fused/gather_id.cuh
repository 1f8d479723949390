// Ids of a batch, as the persistent kernels read them.
#pragma once

#include "kernels/batch_memory.h"

namespace dpiframe {

__device__ inline std::int64_t load_id(const BatchMemory& inputs, int ids_row,
                                       std::int64_t sample) {
  const std::int64_t at = ids_row * inputs.ids_stride + sample;
  return inputs.ids_are_int64 != 0 ? __ldg(static_cast<const long long*>(inputs.ids) + at)
                                   : std::int64_t{__ldg(static_cast<const int*>(inputs.ids) + at)};
}

}  // namespace dpiframe
