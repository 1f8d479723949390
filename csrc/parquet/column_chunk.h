// Numbers of a column chunk, decoded straight to where they are wanted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parquet/page_reader.h"

namespace dpiframe::parquet {

// Decodes pages of 4-byte (int32_t) or 8-byte (int64_t) numbers of any kind.
template <class Number>
class NumberDecoder {
 public:
  // Forgets the dictionary of the chunk before.
  void begin_chunk() { dictionary_.clear(); }
  void take_dictionary(const PageContents& page);
  // Fills `out` from a data page; it has that many values that are no nulls.
  void decode(const PageContents& page, std::span<Number> out) const;
  void trim();

 private:
  std::vector<Number> dictionary_;
};

// Reads chunks of numbers; keeps its memory from one to the next.
template <class Number>
class ColumnChunkReader {
 public:
  // Fills `out`, the rows of a row group, from the chunk; kPagePadding bytes behind it must be
  // readable. Throws std::invalid_argument where it is corrupt, or holds an encoding that is not
  // known here. Nulls become 0, and their rows, counted from `first_row`, are appended to `nulls`;
  // without that they are refused.
  void read(Bytes chunk, Codec codec, bool optional, std::span<Number> out,
            std::vector<std::int64_t>* nulls, std::int64_t first_row);
  // Gives memory back of which there is more than usual.
  void trim();

 private:
  void decode(const PageContents& page, std::span<Number> out);

  PageReader pages_;
  NumberDecoder<Number> numbers_;
  std::vector<Number> staged_;
};

}  // namespace dpiframe::parquet
