// One column chunk of lists, element by element to where the rows' padded lists are wanted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "parquet/column_chunk.h"
#include "parquet/lists/page_rows.h"
#include "parquet/lists/read_list.h"

namespace dpiframe::parquet {

// Collects the padded lists of a few rows and writes them place by place.
template <class Number>
class PaddedRows {
 public:
  // The next list goes to `row` of the target, which must outlive the rows.
  void open(const ListTarget<Number>& target, std::int64_t row);
  // Appends a list by its elements that count, at most as many as the target has places.
  template <class Stored, class Word>
  void append(std::span<const Word> elements);
  // Appends a list of as many elements as the target has places, which is read until `flush`.
  void append_whole(const Number* list);
  void flush();
  std::int64_t next_row() const { return row_ + std::ssize(lists_); }

 private:
  const ListTarget<Number>* target_ = nullptr;
  std::int64_t length_ = 0;
  std::int64_t row_ = 0;              // of the first list that is not written yet
  std::int64_t most_ = 0;             // lists that are not written yet
  std::vector<const Number*> lists_;  // these
  std::vector<Number> padded_;        // [most, length]: those that were padded or converted
};

// How many elements of a page, and distinct ones of a chunk, are read for so many rows of padded
// lists: runs of few bytes may claim any number, for which memory is needed.
inline std::int64_t most_elements(std::int64_t rows, std::int64_t length) {
  constexpr std::int64_t kFew = 1 << 18, kTimesPadded = 4;
  return std::max(kFew, kTimesPadded * rows * length);
}

// Reads chunks of elements that are stored as Stored: int32_t, uint32_t, int64_t, float or double.
template <class Stored, class Number>
class ListChunkReader {
 public:
  // Reads `rows` rows into the target, from its `row` on, and appends to `bad` those with a null
  // that counts. kPagePadding bytes behind the chunk must be readable.
  void read(Bytes chunk, const ChunkForm& form, const ListElement& element,
            const ListTarget<Number>& target, std::int64_t row, std::int64_t rows,
            std::vector<std::int64_t>& bad);
  void trim();

 private:
  using Word = std::conditional_t<sizeof(Stored) == 4, std::int32_t, std::int64_t>;

  void read_page(const PageContents& page, const ListElement& element, std::int64_t most_rows);
  // Makes room for nulls among the values of a page, which lie behind the slots of the open row.
  void spread_nulls(std::int64_t values);
  // The slots [begin, end) of a row that count.
  std::span<const Word> counted(std::int64_t begin, std::int64_t end) const;
  void append_row(std::int64_t begin, std::int64_t end);
  // Keeps what counts of the last row of a page: the next page may go on with it.
  void keep_open(std::int64_t begin, std::int64_t end);

  PageReader pages_;
  NumberDecoder<Word> numbers_;
  PageRows rows_;
  PaddedRows<Number> padded_;
  const ListTarget<Number>* target_ = nullptr;
  std::vector<std::int64_t>* bad_ = nullptr;
  std::vector<Word> slots_;          // those of the open row, then those of a page
  std::vector<std::int64_t> nulls_;  // which of them are null, ascending
  std::size_t next_null_ = 0;        // the first of these at or behind the next row
  std::int64_t open_slots_ = 0;
  std::int64_t most_slots_ = 0;  // of a page
  bool has_open_row_ = false;
};

}  // namespace dpiframe::parquet
