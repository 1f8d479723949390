#include "parquet/metadata/statistics.h"

#include <array>
#include <charconv>
#include <cstring>

namespace dpiframe::parquet {
namespace {

using Value = decltype(StatisticsProblem::value);
using Version = std::array<int, 3>;

struct Writer {
  std::string_view name;
  Version version{};
};

// From "parquet-mr version 1.10.1 (build ...)".
Writer writer_of(std::string_view created_by) {
  constexpr std::string_view kVersion = " version ";
  const std::size_t end = std::min(created_by.find(kVersion), created_by.size());
  Writer writer{created_by.substr(0, end)};
  created_by.remove_prefix(std::min(end + kVersion.size(), created_by.size()));
  const char* next = created_by.data();
  const char* const stop = next + created_by.size();
  for (int& number : writer.version) {
    const auto [behind, error] = std::from_chars(next, stop, number);
    if (error != std::errc() || behind == stop || *behind != '.') break;
    next = behind + 1;
  }
  return writer;
}

// The width of an encoded end; 0 where it varies, or where ends have no order.
std::size_t width_of(PhysicalType type) {
  switch (type) {
    case PhysicalType::kBoolean:
      return 1;
    case PhysicalType::kInt32:
    case PhysicalType::kFloat:
      return 4;
    case PhysicalType::kInt64:
    case PhysicalType::kDouble:
      return 8;
    default:
      return 0;
  }
}

bool is_number(PhysicalType type) {
  return width_of(type) == 4 || width_of(type) == 8;
}

template <class Number>
Number load(std::string_view encoded) {
  Number number;
  std::memcpy(&number, encoded.data(), sizeof(number));
  return number;
}

// `encoded` has the width of the column's type.
Value value_of(const Column& column, std::string_view encoded) {
  if (column.type == PhysicalType::kFloat) return double{load<float>(encoded)};
  if (column.type == PhysicalType::kDouble) return load<double>(encoded);
  const std::int64_t number = column.type == PhysicalType::kInt32 ? load<std::int32_t>(encoded)
                                                                  : load<std::int64_t>(encoded);
  const int unused = 64 - column.integer_bits;
  const std::uint64_t high = static_cast<std::uint64_t>(number) << unused;
  if (column.is_signed) return static_cast<std::int64_t>(high) >> unused;
  return high >> unused;
}

// Holds every number of 64 bits exactly.
long double exactly(const Value& value) {
  return std::visit([](auto number) { return static_cast<long double>(number); }, value);
}

class Reader {
 public:
  explicit Reader(std::string_view created_by) : writer_(writer_of(created_by)) {}

  // Nulls and ends that can be trusted; the ends come together or not at all.
  void read(const Column& column, const ColumnChunk& chunk) {
    nulls = 0, ends.reset();
    if (chunk.statistics.empty()) return;
    CompactReader reader(chunk.statistics);
    const Statistics found = read_statistics(reader);
    std::optional<std::string_view> min, max;
    if (column.order == ColumnOrder::kTypeDefined)
      min = found.min_value, max = found.max_value;
    else if (column.order == ColumnOrder::kUndefined && column.is_signed)
      min = found.unordered_min, max = found.unordered_max;
    if (!trusted(column, min.has_value() && min == max)) return;
    DPIF_CHECK(chunk.type == column.type, "a column chunk has type ", static_cast<int>(chunk.type),
               ", its column ", static_cast<int>(column.type));
    nulls = found.nulls.value_or(0);
    if (!min.has_value() || !max.has_value()) return;
    const std::size_t width = width_of(column.type);
    DPIF_CHECK(min->size() >= width && max->size() >= width, "statistics have values of ",
               min->size(), " and ", max->size(), " bytes, their type has ", width);
    ends = {*min, *max};
  }

  std::int64_t nulls = 0;
  std::optional<std::pair<std::string_view, std::string_view>> ends;

 private:
  // Early writers compared all values as signed ones, which matters unless both ends are the same
  // (PARQUET-686); earlier ones took the wrong ends of byte arrays (PARQUET-251).
  bool trusted(const Column& column, bool same_ends) const {
    const bool is_mr = writer_.name == "parquet-mr";
    const bool is_early = (is_mr && writer_.version < Version{1, 10, 0}) ||
                          (writer_.name == "parquet-cpp" && writer_.version < Version{1, 3, 0});
    if (!is_early) return true;
    if (!column.is_signed && !same_ends) return false;
    return column.type < PhysicalType::kByteArray || !is_mr || writer_.version >= Version{1, 8, 0};
  }

  Writer writer_;
};

}  // namespace

Statistics read_statistics(CompactReader& reader) {
  using Type = CompactReader::Type;
  Statistics found;
  reader.fields([&](std::int64_t id, Type type) {
    if (id == 1 && type == Type::kBinary)
      found.unordered_max = reader.binary();
    else if (id == 2 && type == Type::kBinary)
      found.unordered_min = reader.binary();
    else if (id == 3 && type == Type::kI64)
      found.nulls = reader.integer();
    else if (id == 5 && type == Type::kBinary)
      found.max_value = reader.binary();
    else if (id == 6 && type == Type::kBinary)
      found.min_value = reader.binary();
    else
      reader.skip(type);
  });
  return found;
}

std::vector<StatisticsProblem> statistics_problems(const Footer& footer, const Limits& limits) {
  std::vector<StatisticsProblem> problems;
  Reader reader(footer.created_by);
  for (const auto& [name, within] : limits) {
    const auto found = footer.columns.find(name);
    if (found == footer.columns.end() || !found->second.flat) continue;
    const Column& column = found->second;
    StatisticsProblem nulls{name, "null", 0, {}, 0}, outside{name, "range", 0, {}, 0};
    for (std::size_t g = 0; g < footer.groups.size(); ++g) {
      try {
        reader.read(column, footer.groups[g].chunks[column.leaf]);
      } catch (const std::invalid_argument& error) {
        DPIF_CHECK(false, "row group ", g, ", column ", name, ": ", error.what());
      }
      if (reader.nulls != 0 && nulls.row_groups++ == 0)
        nulls.row_group = g, nulls.value = reader.nulls;
      if (!within.has_value() || !reader.ends.has_value() || !is_number(column.type)) continue;
      const Value low = value_of(column, reader.ends->first);
      const Value high = value_of(column, reader.ends->second);
      const bool below = exactly(low) < within->first;
      if ((below || exactly(high) > within->second) && outside.row_groups++ == 0)
        outside.row_group = g, outside.value = below ? low : high;
    }
    if (nulls.row_groups > 0) problems.push_back(nulls);
    if (outside.row_groups > 0) problems.push_back(outside);
  }
  return problems;
}

}  // namespace dpiframe::parquet
