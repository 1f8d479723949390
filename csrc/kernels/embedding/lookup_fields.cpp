#include <algorithm>

#include "common/check.h"
#include "kernels/embedding/multi_table_lookup_cuda.h"

namespace dpiframe {
namespace {

constexpr int kMaxFields = 4096;  // the ids of one sample must fit in a block's shared memory
constexpr std::int64_t kMaxDim = 4096;
constexpr std::int64_t kMaxColumn = 1 << 30;
constexpr std::int64_t kEndOfInt32 = std::int64_t{1} << 31;

bool aligned16(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

// Elements of one access: 16 bytes, or the half of that, and so on, that all rows consist of.
int access_width(const std::vector<DeviceLookupField>& fields, DataType type) {
  const auto divides = [&](int width) {
    return std::all_of(fields.begin(), fields.end(), [&](const DeviceLookupField& field) {
      return field.dim % width == 0 && field.out_column % width == 0 && aligned16(field.table);
    });
  };
  auto width = static_cast<int>(16 / bytes_of(type));
  while (!divides(width)) width /= 2;
  return width;
}

void check_field(const DeviceLookupField& field, std::size_t f, std::int64_t fm_dim) {
  DPIF_CHECK(field.rows >= 1, "a table must have at least 1 row, got ", field.rows, " (field ", f,
             ")");
  DPIF_CHECK(field.dim <= kMaxDim && field.dim >= (field.table == nullptr ? 0 : 1),
             "dim must be in [1, ", kMaxDim, "], got ", field.dim, " (field ", f, ")");
  DPIF_CHECK(field.out_column >= 0, "out_column must not be negative, got ", field.out_column,
             " (field ", f, ")");
  DPIF_CHECK(field.out_column <= kMaxColumn, "out_column must be at most ", kMaxColumn, ", got ",
             field.out_column, " (field ", f, ")");
  DPIF_CHECK(field.ids_row >= 0, "ids_row must not be negative, got ", field.ids_row, " (field ", f,
             ")");
  DPIF_CHECK(field.oov_row >= -1 && field.oov_row < field.rows, "oov_row must be -1 or in [0, ",
             field.rows, "), got ", field.oov_row, " (field ", f, ")");
  DPIF_CHECK(!field.in_fm || field.dim == fm_dim, "fields in FM must have equal dims, got ", fm_dim,
             " and ", field.dim, " (field ", f, ")");
}

PackedLookupField packed(const DeviceLookupField& field, DataType type) {
  const auto dim = static_cast<std::uint16_t>(field.dim);
  const auto row_bytes = static_cast<std::uint32_t>(field.dim * bytes_of(type));
  const auto rows_of_int32 = static_cast<std::uint32_t>(std::min(field.rows, kEndOfInt32));
  return {{static_cast<const char*>(field.table), field.wide, field.rows, row_bytes, rows_of_int32},
          {static_cast<std::int32_t>(field.out_column), dim, field.in_fm ? dim : std::uint16_t{0}},
          field.oov_row,
          field.ids_row};
}

}  // namespace

DeviceLookupFields::DeviceLookupFields(const std::vector<DeviceLookupField>& fields,
                                       DataType type) {
  DPIF_CHECK(!fields.empty() && fields.size() <= kMaxFields, "a lookup takes 1 to ", kMaxFields,
             " fields, got ", fields.size());
  shape_ = {
      static_cast<int>(fields.size()), 0, type, access_width(fields, type), fields[0].ids_row, 0};
  std::vector<PackedLookupField> records;
  std::int64_t fm_dim = 0;
  for (std::size_t f = 0; f < fields.size(); ++f) {
    const DeviceLookupField& field = fields[f];
    if (field.in_fm && fm_dim == 0) fm_dim = field.dim;
    check_field(field, f, fm_dim);
    shape_.max_dim = std::max(shape_.max_dim, static_cast<int>(field.dim));
    out_width_ = std::max(out_width_, field.out_column + field.dim);
    if (field.ids_row != fields[0].ids_row + static_cast<std::int64_t>(f))
      shape_.first_ids_row = -1;
    records.push_back(packed(field, type));
  }
  has_fm_ = fm_dim > 0;
  const std::size_t bytes = records.size() * sizeof(PackedLookupField);
  const std::size_t zeros = shape_.max_dim * bytes_of(type);
  buffer_ = DeviceBuffer::zeros(bytes + zeros);
  DPIF_CUDA_CHECK(cudaMemcpy(buffer_.get(), records.data(), bytes, cudaMemcpyHostToDevice));
}

void add_dense_slot(MultiTableLookupParams& params, const DenseSlot& slot) {
  LookupShape& shape = params.shape;
  DPIF_CHECK(params.num_dense < kMaxDenseSlots, "a lookup takes at most ", kMaxDenseSlots,
             " slots of dense features");
  DPIF_CHECK(slot.first >= 0 && slot.count >= 1 && slot.first + slot.count <= kMaxDenseColumns,
             "a lookup takes the first ", kMaxDenseColumns, " dense features, got ", slot.first,
             " to ", slot.first + slot.count);
  if (slot.dim > 0) {
    DPIF_CHECK(slot.weight != nullptr && params.out != nullptr && slot.dim <= kMaxDim &&
                   slot.column + std::int64_t{slot.dim} * slot.count <= params.out_stride,
               "dense features as rows need a weight and columns of out");
    shape.max_dim = std::max(shape.max_dim, slot.dim);
    while (slot.dim % shape.width != 0 || slot.column % shape.width != 0) shape.width /= 2;
  }
  shape.dense_columns = std::max(shape.dense_columns, slot.first + slot.count);
  params.dense[params.num_dense++] = slot;
}

}  // namespace dpiframe
