// Columns of lists of numbers, padded or cut to one length: element p of all rows in a vector of
// its own, as the engine wants its fields.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parquet/file.h"

namespace dpiframe::parquet {

// What the elements of lists are, as they are stored.
enum class ElementKind : std::int8_t { kInt32, kUint32, kInt64, kFloat, kDouble };

// The kind of a column's elements in row groups [first, stop), if it holds lists that can be read
// here. Integers of 64 bits without a sign cannot.
std::optional<ElementKind> list_elements(const File& file, std::string_view name, std::size_t first,
                                         std::size_t stop);

// Where the elements of a column go.
template <class Number>
struct ListTarget {
  std::vector<Number*> places;  // [length] of [rows]: for each place of a padded list
  bool pads_before;             // pads stand before a list's own elements, not behind them
  bool keeps_last;              // of longer lists the last elements count, not the first
  Number pad;
};

// Fills the target with the rows of row groups [first, stop); a null list is an empty one. Returns
// the rows, ascending, that have a null among the elements that count; it is 0 there.
//
// Number is std::int32_t, of integers of up to 32 bits with a sign, std::int64_t, of all integers,
// or float, of all numbers. Throws as File::read.
template <class Number>
std::vector<std::int64_t> read_list(const File& file, const std::string& name, std::size_t first,
                                    std::size_t stop, const ListTarget<Number>& target);

}  // namespace dpiframe::parquet
