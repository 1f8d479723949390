// Column chunks of numbers as they are in a file: their bytes in memory, a list of their pages.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parquet/page.h"

namespace dpiframe::parquet {

class File;

struct ColumnPages {
  std::vector<Page> pages;  // a dictionary before the pages that refer to it
  std::int64_t rows = 0;
  int columns = 0;
  int number_bytes = 0;                 // 4 or 8
  std::int64_t compressed_bytes = 0;    // what was read, and pages that were unpacked behind it
  std::int64_t uncompressed_bytes = 0;  // the room of all compressed pages

  // Appends the same columns of another file, whose bytes lie at `at` of the memory, behind those
  // of the pages before: its rows follow theirs. std::invalid_argument: numbers of another size, or
  // more memory than `read_pages` gives one file of so many rows.
  void append(const ColumnPages& file, std::int64_t at);
  // What pages unpack to, and their list, may take a few times what their numbers and their bytes
  // take: a damaged file may hold many pages that each claim a little more.
  void check_memory() const;
};

// Bytes that `read_pages` needs: those of the chunks of these columns in row groups [first, stop),
// and a padding, which it leaves as it is, so that a decoder may read beyond the last page.
std::int64_t pages_bytes(const File& file, const std::vector<std::string>& names, std::size_t first,
                         std::size_t stop);

// Bytes that the compressed ones of these chunks unpack to, by the footer, at most 1 TiB: as much
// room as `read_pages` can use.
std::int64_t unpacked_bytes(const File& file, const std::vector<std::string>& names,
                            std::size_t first, std::size_t stop);

// Reads the chunks into `bytes` and lists their pages. FileError; std::invalid_argument where
// `File::read` would throw it, and for what the GPU does not decode: codecs other than zstd and
// none, levels in another encoding than RLE, columns of 4 and of 8 bytes together, pages of more
// than 64 MiB or 2^26 values, or of more bytes than their values can take. Only page headers,
// checksums and levels that are never compressed are checked here; whether the rest of a page is
// corrupt shows when it is decoded.
//
// A GPU gives each page one warp, and ends with the longest page. Where `bytes` has more room than
// `pages_bytes`, pages of more than `unpack_above` bytes are decompressed into it; by default those
// far longer than most, such as large dictionaries.
ColumnPages read_pages(const File& file, const std::vector<std::string>& names, std::size_t first,
                       std::size_t stop, std::span<std::uint8_t> bytes,
                       std::optional<std::int64_t> unpack_above = {});

// The bytes above which a page is long: `least`, or far more than most have. A GPU would still
// decompress it when it is done with all others.
std::int64_t long_page(const ColumnPages& found, std::int64_t least);

// Decompresses pages of more than `above` bytes, the longest first, into what room there is in
// `bytes` behind the chunks. A corrupt one stays as it is, for the GPU to find.
void unpack_pages(ColumnPages& found, std::span<std::uint8_t> bytes, std::int64_t above);

// Does on this thread what the GPU does (gpu/decompress_pages.h, gpu/decode_pages.h): fills
// out [columns, rows]. std::invalid_argument where a page is corrupt or holds nulls.
void decode_pages_on_cpu(const ColumnPages& unit, std::span<const std::uint8_t> bytes, void* out);

}  // namespace dpiframe::parquet
