// A parquet file whose columns of numbers are read straight into the caller's memory.
//
// It takes flat columns of numbers: int32, int64, float and double without nulls as they are, and
// as features integers of any width and sign, with nulls, too. Anything else it refuses by name,
// and a general reader takes over.
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
  // Of a feature: appended are the rows of its nulls, which become 0. Any number then becomes a
  // float, or an integer an integer of at least its bytes (of uint32, 8).
  std::vector<std::int64_t>* nulls = nullptr;
  bool as_float = false;
};

// Bytes [begin, begin + bytes) of a file.
struct FileRange {
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
};

int bytes_of(PhysicalType type);
// Whether 4 bytes of the column are no int32.
bool is_uint32(const Column& column);

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
  // The type of a column that `read` can read as it is of these row groups, if it can.
  std::optional<PhysicalType> readable(std::string_view name, std::size_t first,
                                       std::size_t stop) const;
  // The column, if `read` can read it as a feature.
  const Column* feature(std::string_view name, std::size_t first, std::size_t stop) const;
  // Whether statistics count some; else there may be some all the same.
  bool has_nulls(const Column& column, std::size_t first, std::size_t stop) const;
  // The columns at the top level of which any chunk is encrypted.
  std::vector<std::string> encrypted() const;
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
  bool can_read(const Target& target, std::size_t first, std::size_t stop) const;

  std::shared_ptr<const FileBytes> bytes_;
  std::shared_ptr<const Footer> footer_;
};

}  // namespace dpiframe::parquet
