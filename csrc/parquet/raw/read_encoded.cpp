#include "parquet/raw/read_encoded.h"

#include "parquet/raw/encoded_chunk.h"

namespace dpiframe::parquet {
namespace {

std::optional<RawKind> kind_of(const Column& column) {
  if (column.text) return RawKind::kText;
  if (!column.number) return {};
  switch (column.type) {
    case PhysicalType::kInt32:  // narrower integers are the same with a sign
      return column.is_signed || column.integer_bits < 32 ? RawKind::kInt32 : RawKind::kUint32;
    case PhysicalType::kInt64:
      return column.is_signed ? std::optional(RawKind::kInt64) : std::nullopt;
    case PhysicalType::kFloat:
      return RawKind::kFloat;
    case PhysicalType::kDouble:
      return RawKind::kDouble;
    default:
      return {};
  }
}

const Column* encodable(const File& file, std::string_view name, std::size_t first,
                        std::size_t stop) {
  (void)file.rows(first, stop);
  const auto found = file.footer().columns.find(name);
  if (found == file.footer().columns.end() || !kind_of(found->second).has_value()) return nullptr;
  for (std::size_t g = first; g < stop; ++g) {
    const RowGroup& group = file.footer().groups[g];
    const ColumnChunk& chunk = group.chunks[found->second.leaf];
    if (chunk.type != found->second.type || chunk.values != group.rows ||
        (group.rows > 0 && !chunk.readable))
      return nullptr;
  }
  return &found->second;
}

}  // namespace

std::optional<RawKind> raw_kind(const File& file, std::string_view name, std::size_t first,
                                std::size_t stop) {
  const Column* column = encodable(file, name, first, stop);
  return column == nullptr ? std::nullopt : kind_of(*column);
}

std::int64_t most_of(RawKind kind) {
  constexpr std::int64_t kMostOfText = 256;  // texts take more bytes than numbers
  return kind == RawKind::kText ? kMostOfText : kMostOfNumber;
}

void read_encoded(const File& file, const std::string& name, std::size_t first, std::size_t stop,
                  std::span<const EncodedTarget> targets) {
  const Column* column = encodable(file, name, first, stop);
  DPIF_CHECK(column != nullptr, "column ", name, " holds no raw values that can be read here");
  const RawKind kind = *kind_of(*column);
  thread_local EncodedChunkReader reader;
  thread_local ScratchBytes memory;
  struct Trim {
    ~Trim() { reader.trim(), memory.trim(); }
  } const at_the_end;  // also where a page is refused
  std::int64_t row = 0;
  for (std::size_t g = first; g < stop; ++g) {
    const RowGroup& group = file.footer().groups[g];
    if (group.rows == 0) continue;
    const ColumnChunk& chunk = group.chunks[column->leaf];
    const ChunkForm form{.codec = chunk.codec,
                         .optional = column->optional,
                         .values = group.rows,
                         .most_of_value = most_of(kind)};
    try {
      reader.read(file.chunk_bytes(chunk, memory), form, kind, targets, row);
    } catch (const std::invalid_argument& error) {
      DPIF_CHECK(false, "row group ", g, ", column ", name, ": ", error.what());
    }
    row += group.rows;
  }
}

}  // namespace dpiframe::parquet
