#include <algorithm>

#include "common/check.h"
#include "kernels/multi_table_lookup_cuda.h"

namespace dpiframe {
namespace {

constexpr int kMaxFields = 4096;  // the ids of one sample must fit in a block's shared memory
constexpr std::int64_t kMaxDim = 4096;

bool aligned16(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

}  // namespace

DeviceLookupFields::DeviceLookupFields(const std::vector<LookupField>& fields) {
  DPIF_CHECK(!fields.empty() && fields.size() <= kMaxFields, "a lookup takes 1 to ", kMaxFields,
             " fields, got ", fields.size());
  shape_ = {static_cast<int>(fields.size()), 0, true};
  std::int64_t fm_dim = 0;
  for (std::size_t f = 0; f < fields.size(); ++f) {
    const LookupField& field = fields[f];
    DPIF_CHECK(field.rows >= 1, "a table must have at least 1 row, got ", field.rows, " (field ", f,
               ")");
    DPIF_CHECK(field.dim >= 1 && field.dim <= kMaxDim, "dim must be in [1, ", kMaxDim, "], got ",
               field.dim, " (field ", f, ")");
    DPIF_CHECK(field.out_column >= 0, "out_column must not be negative, got ", field.out_column,
               " (field ", f, ")");
    DPIF_CHECK(field.oov_row >= -1 && field.oov_row < field.rows, "oov_row must be -1 or in [0, ",
               field.rows, "), got ", field.oov_row, " (field ", f, ")");
    if (field.in_fm && fm_dim == 0) fm_dim = field.dim;
    DPIF_CHECK(!field.in_fm || field.dim == fm_dim, "fields in FM must have equal dims, got ",
               fm_dim, " and ", field.dim, " (field ", f, ")");
    shape_.max_dim = std::max(shape_.max_dim, static_cast<int>(field.dim));
    shape_.vectors &= field.dim % 4 == 0 && field.out_column % 4 == 0 && aligned16(field.table);
    out_width_ = std::max(out_width_, field.out_column + field.dim);
  }
  has_fm_ = fm_dim > 0;
  const std::size_t bytes = fields.size() * sizeof(LookupField);
  buffer_ = DeviceBuffer(bytes);
  DPIF_CUDA_CHECK(cudaMemcpy(buffer_.get(), fields.data(), bytes, cudaMemcpyHostToDevice));
}

}  // namespace dpiframe
