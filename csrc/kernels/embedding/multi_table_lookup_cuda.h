// The GPU side of the multi-table lookup; multi_table_lookup.h has the formulas.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/precision.h"
#include "cuda/completion_flag.h"
#include "cuda/device_buffer.h"
#include "kernels/batch_memory.h"
#include "kernels/elementwise/matrix.h"

namespace dpiframe {

// One field and where its embedding rows go. All pointers are device memory.
struct DeviceLookupField {
  const void* table;  // [rows, dim] of the lookup's type; null: this field has a wide part only
  const float* wide;  // [rows] or null
  std::int64_t rows;  // > 0
  std::int64_t dim;   // in [1, 4096]; 0 without a table
  std::int64_t out_column;  // first of its dim columns in out
  std::int64_t oov_row;     // stands in for ids outside the table; -1: none
  std::int64_t ids_row;     // which row of the batch's ids
  bool in_fm;
};

// A field as kernels read it: what resolving an id needs, and what copying a vector needs.
struct alignas(32) LookupTable {
  const char* table;
  const float* wide;
  std::int64_t rows;
  std::uint32_t row_bytes;
  std::uint32_t rows_of_int32;  // rows, cut off at 2^31
};
struct alignas(8) LookupColumns {
  std::int32_t first;  // of out
  std::uint16_t dim;
  std::uint16_t fm_dim;  // dim, or 0 where the field is not in FM
};
struct alignas(64) PackedLookupField {
  LookupTable table;
  LookupColumns columns;
  std::int64_t oov_row;
  std::int64_t ids_row;
};

// What determines the kernel's configuration.
struct LookupShape {
  int num_fields;
  int max_dim;
  DataType type;               // of tables and of out
  int width;                   // elements an access: all rows and columns start at a multiple of it
  std::int64_t first_ids_row;  // where field f's ids_row is first_ids_row + f for all f; else -1
  int dense_columns;           // as many of the batch's dense features are read
};

// Dense features that a lookup brings along, x[n] for n in [first, first + count) of the batch's:
//   as rows      out[b, column + n dim + d] = x[n] weight[n, d], of the lookup's out; also in FM
//   as numbers   numbers[b, n] = x[n] weight[n] + shift[n]
//   in the sum   wide[b] += sum_n x[n] wide[n]
// All pointers are device memory, and may be null.
struct DenseSlot {
  int first;
  int count;
  int dim;  // 0: as numbers
  int column;
  const float* weight;
  const float* shift;
  const float* wide;
  Matrix numbers;
  bool in_fm;
};
constexpr int kMaxDenseSlots = 6;
constexpr int kMaxDenseColumns = 128;  // of a tile, in shared memory

// Fields on the device that is current when this is made.
class DeviceLookupFields {
 public:
  DeviceLookupFields(const std::vector<DeviceLookupField>& fields, DataType type);

  const PackedLookupField* get() const {
    return static_cast<const PackedLookupField*>(buffer_.get());
  }
  const LookupShape& shape() const { return shape_; }
  std::int64_t out_width() const { return out_width_; }  // columns that out must have
  bool has_fm() const { return has_fm_; }

 private:
  DeviceBuffer buffer_;
  LookupShape shape_{};
  std::int64_t out_width_ = 0;
  bool has_fm_ = false;
};

struct MultiTableLookupParams {
  const PackedLookupField* fields;  // [F], then zeros [max_dim] in place of missing embedding rows
  LookupShape shape;
  void* out;                // [B, W] or null
  std::int64_t out_stride;  // elements from one sample to the next, >= W
  float* fm;                // [B] or null
  float* wide;              // [B] or null
  std::int64_t report;      // index of this lookup's F + 1 counters in the batch's report: the bad
                            // ids of each field are added, and the last becomes the smallest
                            // sample * F + field
  CompletionFlag completion;  // set when all is written
  BatchMemory* batch_memory;  // where the call's BatchMemory is copied to, or null
  DenseSlot dense[kMaxDenseSlots];
  int num_dense;
};

// One more slot; what it writes as rows must be columns of out.
void add_dense_slot(MultiTableLookupParams& params, const DenseSlot& slot);

struct LookupConfig {
  int row_bits;
  int row_threads;   // 2^row_bits neighbouring threads share an embedding row
  int rows_at_once;  // embedding rows of one sample that are read side by side
  int team;          // threads of a warp, at most 32: row_threads a row of a sample
  int share_bits;    // 2^share_bits teams share a sample's embedding rows
  int num_teams;     // of a CTA
  int samples_at_once;
  int tile_bits;
  int tile;           // 2^tile_bits samples a CTA; all of these are powers of two
  int num_vectors;    // of the widest embedding row
  int padded_fields;  // rounded up to what is read at once
  std::size_t shared_bytes;
};

// Depends on the shape alone except for tile, num_teams and how many teams share a sample, which do
// not change the order of a sum: FM's (`fm`) are one team's.
LookupConfig lookup_config(const LookupShape& shape, std::int64_t rows, bool fm);

// Enqueues the lookup of the first `rows` samples or as many as the batch has; never synchronises,
// never allocates.
void multi_table_lookup(std::int64_t rows, const MultiTableLookupParams& params,
                        const BatchMemory& inputs, cudaStream_t stream);

}  // namespace dpiframe
