// Raw columns read as features: what is stored goes through a feature's encoder on its way. Of a
// dictionary each value is encoded once, and rows take their codes by its indices.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "features/value_encoder.h"
#include "parquet/file.h"

namespace dpiframe::parquet {

// What the values of a raw column are, as they are stored.
enum class RawKind : std::int8_t { kText, kInt32, kUint32, kInt64, kFloat, kDouble };

// That of a column of row groups [first, stop): strings, integers (of 64 bits with a sign), float
// or double, with nulls or without; none of others.
std::optional<RawKind> raw_kind(const File& file, std::string_view name, std::size_t first,
                                std::size_t stop);

// Bytes that a value with its levels may take on average; columns with more are left to others.
std::int64_t most_of(RawKind kind);

// A feature of a column, and where its codes go: [rows].
struct EncodedTarget {
  const ValueEncoder* encoder;
  Code* out;
};

// Fills the targets with the rows of row groups [first, stop). Throws as File::read, and where an
// encoder has no code for values of the column's type.
void read_encoded(const File& file, const std::string& name, std::size_t first, std::size_t stop,
                  std::span<const EncodedTarget> targets);

}  // namespace dpiframe::parquet
