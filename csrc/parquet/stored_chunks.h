// Columns of numbers as a file stores them: their bytes in memory, a list of their pages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parquet/stored_page.h"

namespace dpiframe::parquet {

class File;

struct StoredColumns {
  std::vector<StoredPage> pages;  // a dictionary before the pages that refer to it
  std::int64_t rows = 0;
  int columns = 0;
  int number_bytes = 0;             // 4 or 8
  std::int64_t packed_bytes = 0;    // what was read
  std::int64_t unpacked_bytes = 0;  // the room of all compressed pages
};

// Bytes that `read_stored` needs: those of the chunks of these columns in row groups [first, stop),
// and a padding that it leaves as it is, so that what takes the last page apart may look beyond it.
std::int64_t stored_bytes(const File& file, const std::vector<std::string>& names,
                          std::size_t first, std::size_t stop);

// Reads the chunks into `bytes` and lists their pages. FileError; std::invalid_argument where
// `File::read` would throw it, and for what a GPU does not unpack: codecs but zstd and none,
// encodings of levels but runs, columns of 4 and of 8 bytes together, pages of more than 64 MiB or
// 2^26 values, or of more bytes than their values can take. Whether pages are corrupt inside shows
// when they are unpacked: only headers, checksums and levels that are never compressed are looked
// at here.
StoredColumns read_stored(const File& file, const std::vector<std::string>& names,
                          std::size_t first, std::size_t stop, std::span<std::uint8_t> bytes);

// On this thread what the GPU does (kernels/unpack_page.cuh, kernels/decode_page.cuh): fills
// out [columns, rows]. std::invalid_argument where a page is corrupt or holds nulls.
void decode_stored(const StoredColumns& stored, std::span<const std::uint8_t> bytes, void* out);

}  // namespace dpiframe::parquet
