// Raw columns read as features: what is stored goes through a feature's encoder on its way. Of a
// dictionary each value is encoded once, and rows take their codes by its indices.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "features/value_encoder.h"
#include "parquet/file.h"

namespace dpiframe::parquet {

// A feature of a column, and where its codes go: [rows].
struct EncodedTarget {
  const ValueEncoder* encoder;
  Code* out;
};

// Whether `read_encoded` takes a column of these row groups: strings, integers (of 64 bits with a
// sign), float or double, with nulls or without.
bool is_encodable(const File& file, std::string_view name, std::size_t first, std::size_t stop);

// Fills the targets with the rows of row groups [first, stop). Throws as File::read, and where an
// encoder has no code for values of the column's type.
void read_encoded(const File& file, const std::string& name, std::size_t first, std::size_t stop,
                  std::span<const EncodedTarget> targets);

}  // namespace dpiframe::parquet
