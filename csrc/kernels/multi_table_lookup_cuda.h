// The GPU side of the multi-table lookup; multi_table_lookup.h has the formulas.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/device_buffer.h"
#include "kernels/multi_table_lookup.h"

namespace dpiframe {

// What the kernel's configuration follows from.
struct LookupShape {
  int num_fields;
  int max_dim;
  bool vectors;  // every row and every column starts at a multiple of 16 bytes
};

// LookupFields (their tables are device memory) on the device that is current when this is made.
class DeviceLookupFields {
 public:
  explicit DeviceLookupFields(const std::vector<LookupField>& fields);

  const LookupField* get() const { return static_cast<const LookupField*>(buffer_.get()); }
  const LookupShape& shape() const { return shape_; }
  std::int64_t out_width() const { return out_width_; }  // columns that out must have
  bool has_fm() const { return has_fm_; }

 private:
  DeviceBuffer buffer_;
  LookupShape shape_{};
  std::int64_t out_width_ = 0;
  bool has_fm_ = false;
};

// All pointers are device memory.
struct MultiTableLookupParams {
  const LookupField* fields;  // [F]
  LookupShape shape;
  const void* ids;                 // [F, B] int32 or int64
  std::int64_t ids_stride;         // ids from one field to the next, >= B
  std::int64_t batch;              // B
  float* out;                      // [B, W]
  std::int64_t out_stride;         // floats from one sample to the next, >= W
  float* fm;                       // [B] or null
  float* wide;                     // [B] or null
  unsigned long long* bad_counts;  // [F], added to
  unsigned long long* first_bad;   // takes the minimum of itself and row * F + field
  bool ids_are_int64;
  bool use_oov;
};

struct LookupConfig {
  int lanes;   // threads that share a row, a power of two
  int tile;    // samples a block, a power of two
  int slices;  // parts that the fields are dealt out to
  std::size_t shared_bytes;
};

LookupConfig lookup_config(const LookupShape& shape);

// Enqueues the lookup; never synchronises, never allocates.
void multi_table_lookup(const MultiTableLookupParams& params, cudaStream_t stream);

}  // namespace dpiframe
