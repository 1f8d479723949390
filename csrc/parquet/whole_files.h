// Several small files of the same columns read as one: the rows of all, one file behind the other.
//
// It is one call for all files, as each call of its own would wait for Python's lock. One file is
// open at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parquet/column_pages.h"
#include "parquet/file.h"

namespace dpiframe::parquet {

// A file as it was when it was planned.
struct PlannedFile {
  std::string path;
  std::int64_t size;
  std::int64_t mtime_ns;
  std::int64_t rows;
};

// A column whose numbers are read as they are, of this type in all files.
struct PlainColumn {
  Target target;
  PhysicalType type;
};

struct WholeFiles {
  ColumnPages pages;
  std::vector<std::int64_t> group_rows;  // of all files
};

// Fills the targets with the rows of all files, and `bytes` with the pages of `ids`, which it
// lists; it decompresses those of more than `unpack_above` bytes, by default none, into what room
// is left. Rows of nulls count from the begin of their file. Throws as `File::read` and
// `read_pages`; std::invalid_argument also where a file is not the planned one before or after it
// is read, or stores a plain column as another type.
WholeFiles read_whole_files(std::span<const PlannedFile> files, std::vector<PlainColumn> plain,
                            std::vector<Target> features, const std::vector<std::string>& ids,
                            std::span<std::uint8_t> bytes,
                            std::optional<std::int64_t> unpack_above = {});

}  // namespace dpiframe::parquet
