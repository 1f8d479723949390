// The pages of one column chunk, one after another: checked, decompressed, levels apart from
// values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "parquet/metadata/page_header.h"

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

// What stands in a column chunk, and what its pages may hold.
struct ChunkForm {
  Codec codec{};
  bool repeated = false;                       // its pages have repetition levels
  bool optional = false;                       // they have definition levels
  std::int64_t values = 0;                     // with nulls
  std::int64_t most_distinct = INT64_MAX;      // more in a dictionary are refused
  std::int64_t most_of_value = kMostOfNumber;  // bytes of a value with its levels, on average
};

// A dictionary page, or a data page with values; valid until the next one is read.
struct PageContents {
  PageHeader header;
  Bytes repetition;  // levels, RLE/bit-packed
  Bytes definition;
  Bytes values;

  bool is_dictionary() const { return header.type == PageType::kDictionary; }
};

// The bytes of a page that is compressed by the codec, or not; decompressed to `memory`, with
// kPagePadding bytes behind them. std::invalid_argument.
Bytes uncompressed_page(Codec codec, Bytes stored, std::int64_t size, ScratchBytes& memory);

class PageReader {
 public:
  // kPagePadding bytes behind the chunk must be readable.
  void open(Bytes chunk, const ChunkForm& form);
  // Whether all values of the chunk have come.
  bool done() const { return left_ == 0; }
  // Only before it is done. std::invalid_argument where the chunk is corrupt.
  PageContents next();
  // Gives memory back of which there is more than usual.
  void trim() { page_.trim(); }

 private:
  void take_dictionary(PageContents& page, Bytes stored);
  void take_data(PageContents& page, Bytes stored);
  Bytes chunk_;
  ChunkForm form_;
  std::int64_t left_ = 0;
  bool has_dictionary_ = false;
  ScratchBytes page_;
};

}  // namespace dpiframe::parquet
