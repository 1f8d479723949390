// The lookup of the one-kernel forward passes: which block gathers which fields, and where to.
#pragma once

#include <vector>

#include "common/precision.h"
#include "kernels/embedding/multi_table_lookup_cuda.h"
#include "kernels/fused/mlp/smem_layout.h"

namespace dpiframe {

struct ForwardLookup {
  std::vector<ForwardField> fields;
  std::vector<int> x_columns;  // the first column of x0 in each chunk, -1: zeros
};

// Pure. Writes what the arguments say of fields, too.
ForwardLookup place_fields(const std::vector<DeviceLookupField>& fields, DataType type,
                           ForwardArguments& arguments);

}  // namespace dpiframe
