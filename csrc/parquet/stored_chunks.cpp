#include "parquet/stored_chunks.h"

#include <algorithm>

#include "codec/crc32.h"
#include "codec/decompress.h"
#include "parquet/dictionary_values.h"
#include "parquet/file.h"
#include "parquet/page_header.h"

namespace dpiframe::parquet {
namespace {

constexpr std::int64_t kAlignment = 16;       // of an unpacked page
constexpr std::int64_t kBehindUnpacked = 16;  // bytes that may be read

// More than any way of writing numbers takes: a header that lies would ask for the GPU's memory.
constexpr std::int64_t kMostOfValue = 16, kMostBeside = 4096;

// A chunk, and where it goes.
struct Piece {
  const ColumnChunk* chunk;
  std::size_t group;
  std::size_t name;
  bool optional;
  std::int64_t row;  // of its first value in the unit
  std::int64_t rows;
  std::int64_t at;  // of its first byte among the unit's
};

std::string place_of(const Piece& piece, const std::vector<std::string>& names) {
  return join_message("row group ", piece.group, ", column ", names[piece.name], ": ");
}

int number_bytes(const File& file, const std::vector<std::string>& names, std::size_t first,
                 std::size_t stop) {
  DPIF_CHECK(!names.empty(), "no columns");
  int bytes = 0;
  for (const std::string& name : names) {
    const auto type = file.readable(name, first, stop);
    DPIF_CHECK(type.has_value(), "column ", name, " cannot be read here");
    DPIF_CHECK(bytes == 0 || bytes == bytes_of(*type), "column ", name, " has numbers of ",
               bytes_of(*type), " bytes, those before it of ", bytes);
    bytes = bytes_of(*type);
  }
  return bytes;
}

// Chunks of a file never share bytes. Those of a damaged footer may, or lie behind the end, and
// would together ask for many times the file's size of page-locked memory.
void check_places(const std::vector<Piece>& pieces, const std::vector<std::string>& names,
                  std::int64_t size) {
  std::vector<const Piece*> by_place;
  for (const Piece& piece : pieces) {
    const ColumnChunk& chunk = *piece.chunk;
    DPIF_CHECK(chunk.begin <= size && chunk.bytes <= size - chunk.begin, place_of(piece, names),
               "it lies behind the end of the file");
    by_place.push_back(&piece);
  }
  std::ranges::sort(by_place, {}, [](const Piece* piece) { return piece->chunk->begin; });
  for (std::size_t i = 1; i < by_place.size(); ++i) {
    const ColumnChunk& before = *by_place[i - 1]->chunk;
    const ColumnChunk& chunk = *by_place[i]->chunk;
    if (&chunk == &before) continue;  // a column that is asked for twice
    DPIF_CHECK(chunk.begin - before.begin >= before.bytes, place_of(*by_place[i], names),
               "it shares bytes with column ", names[by_place[i - 1]->name], " of row group ",
               by_place[i - 1]->group);
  }
}

// All chunks, those of a row group as they lie in the file.
std::vector<Piece> pieces_of(const File& file, const std::vector<std::string>& names,
                             std::size_t first, std::size_t stop) {
  std::vector<Piece> pieces;
  std::int64_t row = 0, at = 0;
  for (std::size_t g = first; g < stop; ++g) {
    const RowGroup& group = file.footer().groups[g];
    const auto begin = static_cast<std::ptrdiff_t>(pieces.size());
    for (std::size_t n = 0; n < names.size() && group.rows > 0; ++n) {
      const Column& column = file.footer().columns.find(names[n])->second;
      pieces.push_back({&group.chunks[column.leaf], g, n, column.optional, row, group.rows, 0});
    }
    std::ranges::sort(pieces.begin() + begin, pieces.end(), {},
                      [](const Piece& piece) { return piece.chunk->begin; });
    row += group.rows;
  }
  check_places(pieces, names, file.bytes().size());
  for (Piece& piece : pieces) {
    const ColumnChunk& chunk = *piece.chunk;
    DPIF_CHECK(chunk.codec == Codec::kNone || chunk.codec == Codec::kZstd, place_of(piece, names),
               "pages of codec ", static_cast<int>(chunk.codec), " are not unpacked on a GPU");
    DPIF_CHECK(chunk.bytes <= INT64_MAX / 2 - at, place_of(piece, names), "too many bytes");
    piece.at = at;
    at += chunk.bytes;
  }
  return pieces;
}

std::int64_t size_of(const std::vector<Piece>& pieces) {
  return pieces.empty() ? 0 : pieces.back().at + pieces.back().chunk->bytes;
}

// Chunks that lie one behind the other are read at once.
void read_chunks(const FileBytes& file, const std::vector<Piece>& pieces,
                 std::span<std::uint8_t> bytes) {
  for (auto next = pieces.begin(); next != pieces.end();) {
    const auto first = next;
    std::int64_t end = first->chunk->begin;
    for (; next != pieces.end() && next->chunk->begin == end; ++next) end += next->chunk->bytes;
    file.read(first->chunk->begin, bytes.subspan(first->at, end - first->chunk->begin));
  }
}

// Lists the pages of chunks.
class PageList {
 public:
  PageList(StoredColumns& stored, std::span<const std::uint8_t> bytes)
      : stored_(stored), bytes_(bytes) {}

  void add(const Piece& piece) {
    piece_ = &piece;
    dictionary_ = -1;
    std::int64_t at = piece.at, row = piece.row;
    const std::int64_t end = piece.at + piece.chunk->bytes, stop = piece.row + piece.rows;
    while (row < stop) {
      const PageHeader header = read_page_header(bytes_.subspan(at, end - at));
      at += static_cast<std::int64_t>(header.header_bytes);
      const Bytes packed = bytes_.subspan(at, header.bytes);
      DPIF_CHECK(!header.crc.has_value() || crc32(packed) == *header.crc,
                 "a page's checksum is wrong");
      if (header.type == PageType::kDictionary) {
        add_dictionary(header, at);
      } else if (header.type == PageType::kData || header.type == PageType::kDataV2) {
        DPIF_CHECK(header.num_values >= 0 && header.num_values <= stop - row, "a page of ",
                   header.num_values, " values where ", stop - row, " are left");
        add_data(header, at, row);
        row += header.num_values;
      }
      at += header.bytes;
    }
  }

 private:
  void add_dictionary(const PageHeader& header, std::int64_t at) {
    DPIF_CHECK(dictionary_ < 0, "a column has two dictionaries");
    DPIF_CHECK(header.encoding == Encoding::kPlain || header.encoding == Encoding::kPlainDictionary,
               "a dictionary of encoding ", static_cast<int>(header.encoding));
    StoredPage page = page_of(header, at, piece_->row, header.num_values);
    page.kind = PageKind::kDictionary;
    check_numbers(page, header.num_values);
    dictionary_ = static_cast<std::int32_t>(stored_.pages.size());
    take(page, true);
  }

  void add_data(const PageHeader& header, std::int64_t at, std::int64_t row) {
    StoredPage page = page_of(header, at, row, header.num_values);
    if (header.type == PageType::kDataV2)
      pass_levels(header, page);
    else if (piece_->optional)
      page.levels = true;
    DPIF_CHECK(!page.levels || header.levels == Encoding::kRle, "levels of encoding ",
               static_cast<int>(header.levels));
    if (header.encoding == Encoding::kPlain) {
      page.kind = PageKind::kPlain;
      check_numbers(page, header.num_values);
    } else {
      DPIF_CHECK(header.encoding == Encoding::kRleDictionary ||
                     header.encoding == Encoding::kPlainDictionary,
                 "values of encoding ", static_cast<int>(header.encoding));
      DPIF_CHECK(page.values == 0 || (dictionary_ >= 0 && stored_.pages[dictionary_].values > 0),
                 "a page refers to a dictionary that is missing or empty");
      page.kind = PageKind::kIndices;
      page.dictionary = dictionary_;
    }
    take(page, header.type == PageType::kData || header.compressed);
  }

  StoredPage page_of(const PageHeader& header, std::int64_t at, std::int64_t row,
                     std::int64_t values) const {
    DPIF_CHECK(std::max({header.bytes, header.unpacked_bytes, values}) <= kMostOfPage, "a page of ",
               header.bytes, " bytes, unpacked ", header.unpacked_bytes, ", and ", values,
               " values; only up to ", kMostOfPage, " can be unpacked on a GPU");
    DPIF_CHECK(header.unpacked_bytes <= kMostOfValue * values + kMostBeside, "a page of ", values,
               " values that unpacks to ", header.unpacked_bytes, " bytes");
    StoredPage page{};
    page.packed_at = at;
    page.row = row;
    page.packed_bytes = static_cast<std::int32_t>(header.bytes);
    page.unpacked_bytes = static_cast<std::int32_t>(header.unpacked_bytes);
    page.values = static_cast<std::int32_t>(values);
    page.column = static_cast<std::int32_t>(piece_->name);
    page.dictionary = -1;
    return page;
  }

  // Those of version 2, which are never compressed.
  void pass_levels(const PageHeader& header, StoredPage& page) const {
    const auto size = static_cast<std::int32_t>(header.level_bytes);
    const Bytes levels = bytes_.subspan(page.packed_at, size).subspan(header.repetition_bytes);
    DPIF_CHECK(header.num_nulls == 0 && (!piece_->optional || all_present(levels, page.values)),
               "there are nulls");
    page.packed_at += size;
    page.packed_bytes -= size;
    page.unpacked_bytes -= size;
  }

  void check_numbers(const StoredPage& page, std::int64_t count) const {
    DPIF_CHECK(count >= 0 && count <= page.unpacked_bytes / stored_.number_bytes, "a page of ",
               count, " numbers has only ", page.unpacked_bytes, " bytes");
  }

  void take(StoredPage& page, bool compressed) {
    // An empty page of version 2 may be stored as nothing at all.
    page.compressed = compressed && piece_->chunk->codec != Codec::kNone &&
                      (page.packed_bytes > 0 || page.unpacked_bytes > 0);
    DPIF_CHECK(page.compressed || page.packed_bytes == page.unpacked_bytes, "a page of ",
               page.packed_bytes, " bytes that is not compressed should have ",
               page.unpacked_bytes);
    DPIF_CHECK(stored_.pages.size() < INT32_MAX, "too many pages");
    if (page.compressed) {
      page.unpacked_at = stored_.unpacked_bytes;
      const std::int64_t room = page.unpacked_bytes + kBehindUnpacked;
      stored_.unpacked_bytes += (room + kAlignment - 1) / kAlignment * kAlignment;
    }
    stored_.pages.push_back(page);
  }

  StoredColumns& stored_;
  std::span<const std::uint8_t> bytes_;
  const Piece* piece_ = nullptr;
  std::int32_t dictionary_ = -1;  // that of the chunk
};

}  // namespace

std::int64_t stored_bytes(const File& file, const std::vector<std::string>& names,
                          std::size_t first, std::size_t stop) {
  (void)number_bytes(file, names, first, stop);
  return size_of(pieces_of(file, names, first, stop)) + static_cast<std::int64_t>(kPagePadding);
}

StoredColumns read_stored(const File& file, const std::vector<std::string>& names,
                          std::size_t first, std::size_t stop, std::span<std::uint8_t> bytes) {
  StoredColumns stored;
  stored.rows = file.rows(first, stop);
  stored.columns = static_cast<int>(names.size());
  stored.number_bytes = number_bytes(file, names, first, stop);
  const std::vector<Piece> pieces = pieces_of(file, names, first, stop);
  stored.packed_bytes = size_of(pieces);
  const auto room = static_cast<std::int64_t>(bytes.size() - std::min(bytes.size(), kPagePadding));
  DPIF_CHECK(stored.packed_bytes <= room, "memory of ", bytes.size(), " bytes for columns of ",
             stored.packed_bytes, " and a padding of ", kPagePadding);
  read_chunks(file.bytes(), pieces, bytes);
  PageList list(stored, bytes);
  for (const Piece& piece : pieces) {
    try {
      list.add(piece);
    } catch (const std::invalid_argument& error) {
      DPIF_CHECK(false, place_of(piece, names), error.what());
    }
  }
  return stored;
}

}  // namespace dpiframe::parquet
