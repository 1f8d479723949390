#include <cstring>

#include "kernels/embedding/rows_of_ids.h"

namespace dpiframe {
namespace {

template <class Id, class Row>
void rows_of_column(const IdColumn& ids, const RowOfId& row_of, std::int64_t size, Row* rows) {
  const char* data = static_cast<const char*>(ids.data);
  for (std::int64_t b = 0; b < size; ++b) {
    Id id;
    std::memcpy(&id, data + b * ids.stride, sizeof(id));
    rows[b] = static_cast<Row>(row_of(id));
  }
}

template <class Row>
void rows_of_all(std::span<const IdColumn> ids, std::span<const FieldIds> fields, std::int64_t size,
                 Row* rows) {
  DPIF_CHECK(ids.size() == fields.size(), "expected ids of ", fields.size(), " fields, got ",
             ids.size());
  for (std::size_t f = 0; f < ids.size(); ++f, rows += size) {
    const RowOfId row_of(fields[f]);
    if (ids[f].is_int64)
      rows_of_column<std::int64_t>(ids[f], row_of, size, rows);
    else
      rows_of_column<std::int32_t>(ids[f], row_of, size, rows);
  }
}

}  // namespace

void rows_of_ids(std::span<const IdColumn> ids, std::span<const FieldIds> fields, std::int64_t size,
                 std::int32_t* rows) {
  rows_of_all(ids, fields, size, rows);
}

void rows_of_ids(std::span<const IdColumn> ids, std::span<const FieldIds> fields, std::int64_t size,
                 std::int64_t* rows) {
  rows_of_all(ids, fields, size, rows);
}

}  // namespace dpiframe
