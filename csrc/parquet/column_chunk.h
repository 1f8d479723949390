// The pages of one column chunk, decoded straight to where their numbers are wanted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "parquet/metadata/page_header.h"
#include "parquet/rle_bit_packed.h"

namespace dpiframe::parquet {

// A thread's scratch memory above this size is given back after a row group: few pages and chunks
// are larger, and one that is must not keep its memory for the life of the thread.
constexpr std::size_t kKeptBytes = 64 << 20;

// Memory that only grows until `trim`, not set to anything.
class ScratchBytes {
 public:
  std::span<std::uint8_t> take(std::size_t size) {
    if (size > room_) {
      *this = {};
      data_ = std::make_unique_for_overwrite<std::uint8_t[]>(size);
      room_ = size;
    }
    return {data_.get(), size};
  }
  void trim() {
    if (room_ > kKeptBytes) *this = {};
  }

 private:
  std::unique_ptr<std::uint8_t[]> data_;
  std::size_t room_ = 0;
};

// Reads chunks of 4-byte (int32_t) or 8-byte (int64_t) numbers of any kind; keeps its memory from
// one to the next.
template <class Number>
class ColumnChunkReader {
 public:
  // Fills `out`, the rows of a row group, from the chunk; kPagePadding bytes behind it must be
  // readable. Throws std::invalid_argument where it is corrupt, holds nulls or an encoding that is
  // not known here.
  void read(Bytes chunk, Codec codec, bool optional, std::span<Number> out);
  // Gives memory back of which there is more than usual.
  void trim();

 private:
  void read_dictionary(const PageHeader& page, Bytes stored);
  void read_data(const PageHeader& page, Bytes stored, std::span<Number> out);
  void read_values(Encoding encoding, Bytes values, std::span<Number> out);
  // The bytes of a page, decompressed to scratch memory where it is compressed.
  Bytes uncompressed(Bytes stored, std::int64_t size, bool compressed);

  Codec codec_{};
  bool optional_ = false;
  bool has_dictionary_ = false;
  std::vector<Number> dictionary_;
  std::vector<Number> staged_;
  ScratchBytes page_;
};

}  // namespace dpiframe::parquet
