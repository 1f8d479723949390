#include "parquet/unit_chunks.h"

#include <algorithm>

#include "codec/codec.h"
#include "common/check.h"

namespace dpiframe::parquet {
namespace {

// Chunks of a file never share bytes. Those of a damaged footer may, or lie behind the end, and
// would together ask for many times the file's size of page-locked memory.
void check_offsets(const std::vector<UnitChunk>& chunks, const std::vector<std::string>& names,
                   std::int64_t size) {
  std::vector<const UnitChunk*> by_offset;
  for (const UnitChunk& unit_chunk : chunks) {
    const ColumnChunk& chunk = *unit_chunk.chunk;
    DPIF_CHECK(chunk.begin <= size && chunk.bytes <= size - chunk.begin,
               place_of(unit_chunk, names), "it lies behind the end of the file");
    by_offset.push_back(&unit_chunk);
  }
  std::ranges::sort(by_offset, {},
                    [](const UnitChunk* unit_chunk) { return unit_chunk->chunk->begin; });
  for (std::size_t i = 1; i < by_offset.size(); ++i) {
    const ColumnChunk& before = *by_offset[i - 1]->chunk;
    const ColumnChunk& chunk = *by_offset[i]->chunk;
    if (&chunk == &before) continue;  // a column that is asked for twice
    DPIF_CHECK(chunk.begin - before.begin >= before.bytes, place_of(*by_offset[i], names),
               "it shares bytes with column ", names[by_offset[i - 1]->name], " of row group ",
               by_offset[i - 1]->group);
  }
}

}  // namespace

std::vector<UnitChunk> unit_chunks(const File& file, const std::vector<std::string>& names,
                                   std::size_t first, std::size_t stop) {
  std::vector<UnitChunk> chunks;
  std::int64_t row = 0, at = 0;
  for (std::size_t g = first; g < stop; ++g) {
    const RowGroup& group = file.footer().groups[g];
    const auto begin = static_cast<std::ptrdiff_t>(chunks.size());
    for (std::size_t n = 0; n < names.size() && group.rows > 0; ++n) {
      const Column& column = file.footer().columns.find(names[n])->second;
      chunks.push_back({&group.chunks[column.leaf], g, n, column.optional, row, group.rows, 0});
    }
    std::ranges::sort(chunks.begin() + begin, chunks.end(), {},
                      [](const UnitChunk& unit_chunk) { return unit_chunk.chunk->begin; });
    row += group.rows;
  }
  check_offsets(chunks, names, file.bytes().size());
  for (UnitChunk& unit_chunk : chunks) {
    const ColumnChunk& chunk = *unit_chunk.chunk;
    DPIF_CHECK(chunk.codec == Codec::kNone || std::ranges::count(kGpuCodecs, chunk.codec) > 0,
               place_of(unit_chunk, names), "pages of codec ", static_cast<int>(chunk.codec),
               " are not unpacked on a GPU");
    DPIF_CHECK(chunk.bytes <= INT64_MAX / 2 - at, place_of(unit_chunk, names), "too many bytes");
    unit_chunk.at = at;
    at += chunk.bytes;
  }
  return chunks;
}

std::int64_t bytes_of(const std::vector<UnitChunk>& chunks) {
  return chunks.empty() ? 0 : chunks.back().at + chunks.back().chunk->bytes;
}

void read_chunks(const FileBytes& file, const std::vector<UnitChunk>& chunks,
                 std::span<std::uint8_t> bytes) {
  for (auto next = chunks.begin(); next != chunks.end();) {
    const auto first = next;
    std::int64_t end = first->chunk->begin;
    for (; next != chunks.end() && next->chunk->begin == end; ++next) end += next->chunk->bytes;
    file.read(first->chunk->begin, bytes.subspan(first->at, end - first->chunk->begin));
  }
}

std::string place_of(const UnitChunk& unit_chunk, const std::vector<std::string>& names) {
  return join_message("row group ", unit_chunk.group, ", column ", names[unit_chunk.name], ": ");
}

}  // namespace dpiframe::parquet
