#include "parquet/lists/list_chunk.h"

#include <algorithm>
#include <bit>

#include "parquet/encodings/rle_bit_packed.h"
#include "parquet/lists/transpose.h"

namespace dpiframe::parquet {
namespace {

// Lists are put together in a cache of the second level, in groups of so many rows that the many
// places do not take turns at the translation of addresses all the time.
constexpr std::int64_t kGroupBytes = 64 << 10, kFewestRows = 16, kMostRows = 256;

}  // namespace

template <class Number>
void PaddedRows<Number>::open(const ListTarget<Number>& target, std::int64_t row) {
  target_ = &target, length_ = std::ssize(target.places);
  row_ = row;
  constexpr auto kNumberBytes = static_cast<std::int64_t>(sizeof(Number));
  most_ = std::clamp(kGroupBytes / (length_ * kNumberBytes), kFewestRows, kMostRows);
  lists_.clear(), lists_.reserve(most_);
  padded_.resize(most_ * length_);
}

template <class Number>
template <class Stored, class Word>
void PaddedRows<Number>::append(std::span<const Word> elements) {
  const auto filled = std::ssize(lists_);
  if (filled == most_) return flush(), append<Stored>(elements);
  Number* list = padded_.data() + filled * length_;
  lists_.push_back(list);
  const auto pads = static_cast<std::size_t>(length_) - elements.size();
  if (target_->pads_before) list = std::fill_n(list, pads, target_->pad);
  for (std::size_t i = 0; i < elements.size(); ++i)
    list[i] = static_cast<Number>(std::bit_cast<Stored>(elements[i]));
  if (!target_->pads_before) std::fill_n(list + elements.size(), pads, target_->pad);
}

template <class Number>
void PaddedRows<Number>::append_whole(const Number* list) {
  if (std::ssize(lists_) == most_) flush();
  lists_.push_back(list);
}

template <class Number>
void PaddedRows<Number>::flush() {
  transpose<Number>(lists_, target_->places, row_);
  row_ = next_row();
  lists_.clear();
}

template <class Stored, class Number>
void ListChunkReader<Stored, Number>::read(Bytes chunk, const ChunkForm& form,
                                           const ListElement& element,
                                           const ListTarget<Number>& target, std::int64_t row,
                                           std::int64_t rows, std::vector<std::int64_t>& bad) {
  target_ = &target, bad_ = &bad;
  has_open_row_ = false, open_slots_ = 0;
  most_slots_ = most_elements(rows, std::ssize(target.places));
  pages_.open(chunk, form);
  numbers_.begin_chunk();
  padded_.open(target, row);
  while (!pages_.done()) {
    const PageContents page = pages_.next();
    if (page.is_dictionary())
      numbers_.take_dictionary(page);
    else
      read_page(page, element, row + rows - padded_.next_row() - (has_open_row_ ? 1 : 0));
  }
  next_null_ = 0;
  if (has_open_row_) append_row(0, open_slots_);
  padded_.flush();
  DPIF_CHECK(padded_.next_row() == row + rows, "it has ", padded_.next_row() - row,
             " lists for its ", rows, " rows");
}

template <class Stored, class Number>
void ListChunkReader<Stored, Number>::trim() {
  pages_.trim(), numbers_.trim(), rows_.trim();
  if (slots_.capacity() * sizeof(Word) > kKeptBytes) slots_ = {};
  if (nulls_.capacity() * sizeof(std::int64_t) > kKeptBytes) nulls_ = {};
}

template <class Stored, class Number>
void ListChunkReader<Stored, Number>::read_page(const PageContents& page,
                                                const ListElement& element,
                                                std::int64_t most_rows) {
  DPIF_CHECK(page.header.num_values <= most_slots_, "a page of ", page.header.num_values,
             " elements, ", most_slots_, " are read at one time");
  rows_.read(page, element, most_rows);
  const std::vector<std::int64_t>& begins = rows_.begins();
  DPIF_CHECK(has_open_row_ || (!begins.empty() && begins[0] == 0),
             "its first page begins within a list");
  if (!has_open_row_) nulls_.clear();
  const std::int64_t slots = rows_.slots(), values = slots - std::ssize(rows_.nulls());
  const auto wanted = static_cast<std::size_t>(open_slots_ + slots);
  if (slots_.size() < wanted) slots_.resize(wanted);
  if (values > 0)
    numbers_.decode(page, std::span(slots_).subspan(open_slots_, static_cast<std::size_t>(values)));
  spread_nulls(values);
  next_null_ = 0;
  std::int64_t begin = 0;
  bool is_first = !has_open_row_;  // begins[0] is then where the row begins, not where one ends
  for (const std::int64_t slot : begins) {
    const std::int64_t end = open_slots_ + slot;
    if (!is_first) append_row(begin, end);
    begin = end, is_first = false;
  }
  padded_.flush();  // before the slots are others
  keep_open(begin, open_slots_ + slots);
}

template <class Stored, class Number>
void ListChunkReader<Stored, Number>::spread_nulls(std::int64_t values) {
  std::int64_t end = open_slots_ + values;  // of the values that are not moved yet
  const std::vector<std::int64_t>& found = rows_.nulls();
  std::int64_t to = open_slots_ + rows_.slots();
  for (auto null = found.rbegin(); null != found.rend(); ++null) {
    const std::int64_t slot = open_slots_ + *null, behind = to - slot - 1;
    std::copy_backward(slots_.begin() + end - behind, slots_.begin() + end, slots_.begin() + to);
    end -= behind, to = slot;
    slots_[slot] = 0;
  }
  for (const std::int64_t slot : found) nulls_.push_back(open_slots_ + slot);
}

template <class Stored, class Number>
auto ListChunkReader<Stored, Number>::counted(std::int64_t begin, std::int64_t end) const
    -> std::span<const Word> {
  const std::int64_t count = std::min(end - begin, std::ssize(target_->places));
  return {slots_.data() + (target_->keeps_last ? end - count : begin),
          static_cast<std::size_t>(count)};
}

template <class Stored, class Number>
void ListChunkReader<Stored, Number>::append_row(std::int64_t begin, std::int64_t end) {
  const std::span<const Word> elements = counted(begin, end);
  if (next_null_ < nulls_.size()) {
    const std::int64_t from = elements.data() - slots_.data(), stop = from + std::ssize(elements);
    while (next_null_ < nulls_.size() && nulls_[next_null_] < from) ++next_null_;
    if (next_null_ < nulls_.size() && nulls_[next_null_] < stop)
      bad_->push_back(padded_.next_row());
    while (next_null_ < nulls_.size() && nulls_[next_null_] < end) ++next_null_;
  }
  if constexpr (std::is_same_v<Stored, Number>) {
    if constexpr (std::is_same_v<Word, Number>)
      if (elements.size() == target_->places.size()) return padded_.append_whole(elements.data());
  }
  padded_.template append<Stored>(elements);
}

template <class Stored, class Number>
void ListChunkReader<Stored, Number>::keep_open(std::int64_t begin, std::int64_t end) {
  const std::span<const Word> elements = counted(begin, end);
  const std::int64_t from = elements.data() - slots_.data(), stop = from + std::ssize(elements);
  std::erase_if(nulls_, [&](std::int64_t slot) { return slot < from || slot >= stop; });
  for (std::int64_t& slot : nulls_) slot -= from;
  std::copy(elements.begin(), elements.end(), slots_.begin());
  open_slots_ = std::ssize(elements), has_open_row_ = true;
}

template class ListChunkReader<std::int32_t, std::int32_t>;
template class ListChunkReader<std::int32_t, std::int64_t>;
template class ListChunkReader<std::uint32_t, std::int64_t>;
template class ListChunkReader<std::int64_t, std::int64_t>;
template class ListChunkReader<std::int32_t, float>;
template class ListChunkReader<std::uint32_t, float>;
template class ListChunkReader<std::int64_t, float>;
template class ListChunkReader<float, float>;
template class ListChunkReader<double, float>;

}  // namespace dpiframe::parquet
