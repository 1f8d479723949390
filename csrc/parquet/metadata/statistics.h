// Statistics of column chunks: how many values are null, and the ends of the others, as far as
// their writer and their order let them be trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "parquet/metadata/footer.h"

namespace dpiframe::parquet {

struct Statistics {
  std::optional<std::int64_t> nulls;
  // As encoded. Those without an order are deprecated: what wrote them compared as it liked.
  std::optional<std::string_view> min_value, max_value, unordered_min, unordered_max;
};

// Reads a Thrift struct.
Statistics read_statistics(CompactReader& reader);

// What a column's numbers must lie in, both ends included; without it only nulls are looked for.
using Limits = std::vector<std::pair<std::string, std::optional<std::pair<double, double>>>>;

// What is wrong with a column, at the first row group that shows it.
struct StatisticsProblem {
  std::string column;
  std::string kind;  // "null" or "range"
  std::size_t row_group;
  std::variant<std::int64_t, std::uint64_t, double> value;  // the number of nulls; an end outside
  std::size_t row_groups;                                   // how many show it
};

// Looks at flat columns of these names. std::invalid_argument where their statistics are no
// statistics of such a column.
std::vector<StatisticsProblem> statistics_problems(const Footer& footer, const Limits& limits);

}  // namespace dpiframe::parquet
