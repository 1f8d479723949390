// Which block gathers which fields, and where to.
#include "kernels/fused/gather_plan.h"

#include <cstddef>

namespace dpiframe {
namespace {

constexpr int kPiece = 8;  // columns

// The fields by 16 columns, and which column of x0 each part begins at.
std::vector<int> split_fields(const std::vector<DeviceLookupField>& fields, DataType type,
                              ForwardLookup& lookup, ForwardArguments& a) {
  std::vector<int> columns;
  for (std::size_t slot = 0; slot < fields.size(); ++slot) {
    const DeviceLookupField& field = fields[slot];
    int piece = 0;
    for (const int pieces : forward_parts({field.dim})) {
      a.ids_rows[columns.size()] = static_cast<std::uint16_t>(field.ids_row);
      columns.push_back(static_cast<int>(field.out_column) + piece * kPiece);
      const bool first = piece == 0;
      lookup.fields.push_back(
          {static_cast<const char*>(field.table) + kPiece * bytes_of(type) * piece,
           first ? field.wide : nullptr, static_cast<std::uint32_t>(field.rows),
           static_cast<std::uint32_t>(field.dim * bytes_of(type)), 0, pieces, field.oov_row,
           first ? static_cast<std::int32_t>(slot) : -1});
      piece += pieces;
    }
  }
  return columns;
}

// Halves the fields between the blocks and gives each its chunks.
void place_chunks(const std::vector<int>& columns, ForwardLookup& lookup, ForwardArguments& a) {
  const auto total = static_cast<int>(columns.size());
  a.fields_end[0] = (total + 1) / 2;
  a.fields_end[1] = total;
  for (int block = 0, f = 0; block < 2; ++block) {
    const std::size_t first = lookup.x_columns.size();
    for (; f < a.fields_end[block]; ++f) {
      lookup.fields[f].place = static_cast<std::uint32_t>(lookup.x_columns.size() * kChunkStride);
      for (int piece = 0; piece < lookup.fields[f].pieces; ++piece)
        lookup.x_columns.push_back(columns[f] + piece * kPiece);
    }
    a.zero_chunk[block] = -1;
    if ((lookup.x_columns.size() - first) % 2 != 0) {
      a.zero_chunk[block] = static_cast<int>(lookup.x_columns.size());
      lookup.x_columns.push_back(-1);
    }
    a.chunks[block] = static_cast<int>(lookup.x_columns.size() - first);
  }
}

}  // namespace

ForwardLookup place_fields(const std::vector<DeviceLookupField>& fields, DataType type,
                           ForwardArguments& arguments) {
  ForwardLookup lookup;
  arguments.num_slots = static_cast<int>(fields.size());
  place_chunks(split_fields(fields, type, lookup, arguments), lookup, arguments);
  return lookup;
}

}  // namespace dpiframe
