// Which samples hold an id outside its table, for rejecting them before they are scored.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/embedding/multi_table_lookup.h"

namespace dpiframe {

// mask[b] = any id of sample b is outside [0, rows[f]); counts[f] = such ids of field f.
// mask [size] and counts [F] are overwritten.
void find_bad_ids(std::span<const IdColumn> ids, std::span<const std::int64_t> rows,
                  std::int64_t size, std::uint8_t* mask, std::int64_t* counts);

}  // namespace dpiframe
