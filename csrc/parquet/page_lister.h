// Lists the pages of chunks.
#pragma once

#include <cstdint>
#include <span>

#include "parquet/column_pages.h"
#include "parquet/metadata/page_header.h"
#include "parquet/unit_chunks.h"

namespace dpiframe::parquet {

// The next multiple of the alignment of a decompressed page.
constexpr std::int64_t aligned_page(std::int64_t at) {
  constexpr std::int64_t kAlignment = 16;
  return (at + kAlignment - 1) / kAlignment * kAlignment;
}

// Of numbers; raw columns have another one.
class PageLister {
 public:
  // `bytes`: those of the unit's chunks, and more. A value with its levels has `most_of_value` of
  // them on average at most.
  PageLister(ColumnPages& found, std::span<const std::uint8_t> bytes)
      : found_(found), bytes_(bytes) {}
  virtual ~PageLister() = default;
  PageLister(const PageLister&) = delete;
  PageLister& operator=(const PageLister&) = delete;

  // Appends the pages of a chunk. std::invalid_argument where one of them is not taken.
  void add(const UnitChunk& unit_chunk, std::int64_t most_of_value = kMostOfNumber);

 protected:
  virtual void add_dictionary(const PageHeader& header, std::int64_t at);
  virtual void add_data(const PageHeader& header, std::int64_t at, std::int64_t row);

  Page page_of(const PageHeader& header, std::int64_t at, std::int64_t row,
               std::int64_t values) const;
  // Appends the page, which may be compressed.
  void take(Page& page, bool compressed);
  const UnitChunk& chunk() const { return *chunk_; }

  ColumnPages& found_;
  std::span<const std::uint8_t> bytes_;
  std::int32_t dictionary_ = -1;  // that of the chunk

 private:
  void pass_levels(const PageHeader& header, Page& page) const;
  void check_numbers(const Page& page, std::int64_t count) const;

  const UnitChunk* chunk_ = nullptr;
};

}  // namespace dpiframe::parquet
