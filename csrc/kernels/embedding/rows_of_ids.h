// Rows of tables from ids that may repeat (the hashing trick): what FieldSpec.in_table says.
//
//   row = id                              0 <= id < rows
//   row = first + (id - first) mod period, first = rows - period, of other ids from least to last
//   row = -1                              of any other: it is none
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "common/check.h"
#include "common/fast_modulo.h"
#include "common/host_device.h"
#include "kernels/embedding/multi_table_lookup.h"

namespace dpiframe {

// The ids of a field. period 0: none repeat, so that they are the rows.
struct FieldIds {
  std::int64_t rows;    // of its table, >= 1
  std::int64_t period;  // at most rows; less: no id is negative
  std::int64_t least;   // of the ids, where some repeat: at most 0
  std::int64_t last;
};

class RowOfId {
 public:
  // std::invalid_argument
  explicit RowOfId(const FieldIds& ids)
      : least_(ids.period == 0 ? 0 : ids.least),
        last_(ids.period == 0 ? ids.rows - 1 : ids.last),
        end_(std::min(ids.rows - 1, last_) + 1),
        first_(ids.rows - ids.period),
        modulo_(static_cast<std::uint64_t>(std::max<std::int64_t>(ids.period, 1))) {
    DPIF_CHECK(ids.rows >= 1 && ids.period >= 0 && ids.period <= ids.rows,
               "a table must have at least 1 row and at most so many that repeat, got ", ids.rows,
               " and ", ids.period);
    DPIF_CHECK(least_ <= 0 && last_ >= 0 && (least_ == 0 || first_ == 0),
               "ids must begin at 0, before it only where all rows repeat, got ", ids.least, " to ",
               ids.last);
  }

  DPIF_HOST_DEVICE std::int64_t operator()(std::int64_t id) const {
    if (static_cast<std::uint64_t>(id) < static_cast<std::uint64_t>(end_)) return id;
    if (id < least_ || id > last_) return -1;
    // Of a negative id, whose first is 0, counted from -1 downwards.
    const std::uint64_t distance = static_cast<std::uint64_t>(id < 0 ? ~id : id - first_);
    const auto rest = static_cast<std::int64_t>(modulo_(distance));
    return id < 0 ? end_of_period() - rest : first_ + rest;
  }

 private:
  DPIF_HOST_DEVICE std::int64_t end_of_period() const {
    return static_cast<std::int64_t>(modulo_.divisor()) - 1;
  }

  std::int64_t least_;
  std::int64_t last_;
  std::int64_t end_;  // ids from 0 to it are their own rows
  std::int64_t first_;
  FastModulo modulo_;
};

// rows [F, size] of the ids, of 4 or 8 bytes.
void rows_of_ids(std::span<const IdColumn> ids, std::span<const FieldIds> fields, std::int64_t size,
                 std::int32_t* rows);
void rows_of_ids(std::span<const IdColumn> ids, std::span<const FieldIds> fields, std::int64_t size,
                 std::int64_t* rows);

}  // namespace dpiframe
