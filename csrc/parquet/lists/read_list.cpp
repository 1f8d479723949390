#include "parquet/lists/read_list.h"

#include "parquet/encodings/rle_bit_packed.h"
#include "parquet/lists/list_chunk.h"

namespace dpiframe::parquet {
namespace {

const Column* list_column(const File& file, std::string_view name, std::size_t first,
                          std::size_t stop) {
  (void)file.rows(first, stop);
  const auto found = file.footer().columns.find(name);
  if (found == file.footer().columns.end() || !found->second.list.has_value()) return nullptr;
  for (std::size_t g = first; g < stop; ++g) {
    const RowGroup& group = file.footer().groups[g];
    const ColumnChunk& chunk = group.chunks[found->second.leaf];
    // Each row has a level at least.
    if (group.rows > 0 &&
        (!chunk.readable || chunk.type != found->second.list->type || chunk.values < group.rows))
      return nullptr;
  }
  return &found->second;
}

std::optional<ElementKind> kind_of(const ListElement& element) {
  const bool is_small = element.integer_bits < 32;  // its numbers are the same with a sign
  switch (element.type) {
    case PhysicalType::kInt32:
      return element.is_signed || is_small ? ElementKind::kInt32 : ElementKind::kUint32;
    case PhysicalType::kInt64:
      return element.is_signed ? std::optional(ElementKind::kInt64) : std::nullopt;
    case PhysicalType::kFloat:
      return ElementKind::kFloat;
    case PhysicalType::kDouble:
      return ElementKind::kDouble;
    default:
      return {};
  }
}

template <class Stored, class Number>
std::vector<std::int64_t> read_stored(const File& file, const Column& column, std::size_t first,
                                      std::size_t stop, const ListTarget<Number>& target) {
  thread_local ListChunkReader<Stored, Number> reader;
  thread_local ScratchBytes memory;
  struct Trim {
    ~Trim() { reader.trim(), memory.trim(); }
  } const at_the_end;  // also where a page is refused
  std::vector<std::int64_t> bad;
  std::int64_t row = 0;
  for (std::size_t g = first; g < stop; ++g) {
    const RowGroup& group = file.footer().groups[g];
    const ColumnChunk& chunk = group.chunks[column.leaf];
    if (group.rows == 0) continue;
    const ChunkForm form{
        .codec = chunk.codec,
        .repeated = true,
        .optional = true,
        .values = chunk.values,
        .most_distinct = most_elements(group.rows, std::ssize(target.places)),
    };
    try {
      const Bytes bytes = file.chunk_bytes(chunk, memory);
      reader.read(bytes, form, *column.list, target, row, group.rows, bad);
    } catch (const std::invalid_argument& error) {
      DPIF_CHECK(false, "row group ", g, ", ", error.what());
    }
    row += group.rows;
  }
  return bad;
}

}  // namespace

std::optional<ElementKind> list_elements(const File& file, std::string_view name, std::size_t first,
                                         std::size_t stop) {
  const Column* column = list_column(file, name, first, stop);
  return column == nullptr ? std::nullopt : kind_of(*column->list);
}

template <class Number>
std::vector<std::int64_t> read_list(const File& file, const std::string& name, std::size_t first,
                                    std::size_t stop, const ListTarget<Number>& target) {
  const Column* column = list_column(file, name, first, stop);
  const auto kind = column == nullptr ? std::nullopt : kind_of(*column->list);
  DPIF_CHECK(kind.has_value(), "column ", name, " holds no lists that can be read here");
  DPIF_CHECK(!target.places.empty(), "column ", name, ": a list needs a place at least");
  const auto refuse = [&] { DPIF_CHECK(false, "column ", name, " holds other numbers"); };
  try {
    constexpr bool kReal = std::is_same_v<Number, float>;
    constexpr bool kWide = kReal || sizeof(Number) == sizeof(std::int64_t);
    switch (*kind) {
      case ElementKind::kInt32:
        return read_stored<std::int32_t>(file, *column, first, stop, target);
      case ElementKind::kUint32:
        if constexpr (kWide) return read_stored<std::uint32_t>(file, *column, first, stop, target);
        break;
      case ElementKind::kInt64:
        if constexpr (kWide) return read_stored<std::int64_t>(file, *column, first, stop, target);
        break;
      case ElementKind::kFloat:
        if constexpr (kReal) return read_stored<float>(file, *column, first, stop, target);
        break;
      case ElementKind::kDouble:
        if constexpr (kReal) return read_stored<double>(file, *column, first, stop, target);
        break;
    }
  } catch (const std::invalid_argument& error) {
    DPIF_CHECK(false, "column ", name, ": ", error.what());
  }
  refuse();
  return {};
}

template std::vector<std::int64_t> read_list(const File&, const std::string&, std::size_t,
                                             std::size_t, const ListTarget<std::int32_t>&);
template std::vector<std::int64_t> read_list(const File&, const std::string&, std::size_t,
                                             std::size_t, const ListTarget<std::int64_t>&);
template std::vector<std::int64_t> read_list(const File&, const std::string&, std::size_t,
                                             std::size_t, const ListTarget<float>&);

}  // namespace dpiframe::parquet
