// A parquet file whose columns of numbers are read straight into the caller's memory.
//
// It takes what a job's hot path needs: flat int32, int64, float and double columns without nulls,
// PLAIN or dictionary-encoded, in a known codec. Anything else it refuses by name, and a general
// reader takes over.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parquet/file_bytes.h"
#include "parquet/metadata/footer.h"
#include "parquet/page_reader.h"

namespace dpiframe::parquet {

// Where a column of some row groups goes: numbers of 4 or 8 bytes.
struct Target {
  std::string name;
  int number_bytes;
  void* out;
};

// Bytes [begin, begin + bytes) of a file.
struct FileRange {
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
};

int bytes_of(PhysicalType type);

class File {
 public:
  // Reads the footer. FileError; std::invalid_argument where it is no parquet file.
  explicit File(const std::string& path);
  // A file of `size` bytes by its last ones, among which the footer is; it reads no columns.
  File(std::int64_t size, std::span<const std::uint8_t> end);
  // The same file with ranges that were fetched: it reads the columns that they hold.
  File over(std::span<const std::uint8_t> memory, std::vector<KnownRange> ranges) const;

  std::vector<std::int64_t> group_rows() const;
  // Rows of row groups [first, stop). std::invalid_argument where there are no such groups.
  std::int64_t rows(std::size_t first, std::size_t stop) const;
  // The type of a column that `read` can read of these row groups, if it can.
  std::optional<PhysicalType> readable(std::string_view name, std::size_t first,
                                       std::size_t stop) const;
  // Where the chunks of these columns at the top level lie, those of a row group as they lie in the
  // file. std::invalid_argument: no such column, or chunks outside of the file or that share bytes.
  std::vector<FileRange> chunk_ranges(const std::vector<std::string>& names, std::size_t first,
                                      std::size_t stop) const;
  // Fills the targets with the rows of the row groups [first, stop), one group behind the other.
  // Several threads may read at a time. FileError; std::invalid_argument where a column is corrupt,
  // or cannot be read after all.
  void read(const std::vector<Target>& targets, std::size_t first, std::size_t stop) const;

  // The bytes of a chunk, read to `memory` unless they are known; kPagePadding bytes behind them
  // are readable. std::invalid_argument where it lies behind the end of the file; FileError.
  Bytes chunk_bytes(const ColumnChunk& chunk, ScratchBytes& memory) const;

  // For those who take the pages as they are stored.
  const Footer& footer() const { return *footer_; }
  const FileBytes& bytes() const { return *bytes_; }

 private:
  File(std::shared_ptr<const FileBytes> bytes, std::shared_ptr<const Footer> footer);

  std::shared_ptr<const FileBytes> bytes_;
  std::shared_ptr<const Footer> footer_;
};

}  // namespace dpiframe::parquet
