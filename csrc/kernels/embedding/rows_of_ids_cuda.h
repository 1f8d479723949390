// rows_of_ids.h on the device: the first kernel of a batch of a program whose fields' ids repeat.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "cuda/device_buffer.h"
#include "kernels/batch_memory.h"
#include "kernels/embedding/rows_of_ids.h"

namespace dpiframe {

class DeviceRowsOfIds {
 public:
  // Room for the rows of batches of up to max_rows samples.
  DeviceRowsOfIds(const std::vector<FieldIds>& fields, std::int64_t max_rows);

  // The batch with its ids as the given ones, and the rows that run makes of them as its ids.
  BatchMemory in_rows(BatchMemory memory) const;

  // The rows of a batch that in_rows changed.
  void run(std::int64_t rows, const BatchMemory& memory, cudaStream_t stream) const;

  std::size_t bytes() const { return fields_.bytes() + rows_.bytes(); }

 private:
  int num_fields_;
  std::int64_t max_rows_;
  bool are_int64_;  // where a table has more than 2^31 rows
  DeviceBuffer fields_;
  DeviceBuffer rows_;
};

}  // namespace dpiframe
