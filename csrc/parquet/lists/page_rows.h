// The rows of a data page of lists, by its levels.
//
// A page has one pair of levels for each element, and one for each list without elements. Its
// elements, nulls among them, are numbered: these numbers are its slots.
#pragma once

#include <cstdint>
#include <vector>

#include "parquet/metadata/footer.h"
#include "parquet/page_reader.h"

namespace dpiframe::parquet {

class PageRows {
 public:
  // Throws std::invalid_argument where the levels are no such levels, or begin more than
  // `most_rows` rows.
  void read(const PageContents& page, const ListElement& element, std::int64_t most_rows);

  // The first slot of each row that begins in the page, ascending. Slots before the first of them
  // belong to a row that began before the page.
  const std::vector<std::int64_t>& begins() const { return begins_; }
  // The slots of null elements, ascending.
  const std::vector<std::int64_t>& nulls() const { return nulls_; }
  std::int64_t slots() const { return slots_; }
  void trim();

 private:
  std::vector<std::int64_t> begins_;
  std::vector<std::int64_t> empties_;  // lists without elements, by their levels' position
  std::vector<std::int64_t> nulls_;
  std::int64_t slots_ = 0;
};

}  // namespace dpiframe::parquet
