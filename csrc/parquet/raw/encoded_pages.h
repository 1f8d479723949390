// Raw columns as pages for a GPU, which gives the codes of features: those of a dictionary's values
// are found here, once for each, and stand in its place; pages of indices and of PLAIN texts that
// are hashed stay as they are stored. Chunks with any other page are encoded here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "features/value_encoder.h"
#include "parquet/column_pages.h"

namespace dpiframe::parquet {

// Bytes that `read_encoded_pages` needs for these columns of row groups [first, stop), as large as
// their dictionaries may be by the footer. std::invalid_argument: a column or a codec is not taken.
std::int64_t encoded_pages_bytes(const File& file, const std::vector<std::string>& names,
                                 std::span<const ValueEncoder* const> encoders, std::size_t first,
                                 std::size_t stop);

// Reads the chunks into `bytes` and lists the pages of codes [columns, rows], each column with its
// encoder. As `read_pages`; std::invalid_argument also where the footer told too little memory, and
// an encoder has no code for values of the column's type.
ColumnPages read_encoded_pages(const File& file, const std::vector<std::string>& names,
                               std::span<const ValueEncoder* const> encoders, std::size_t first,
                               std::size_t stop, std::span<std::uint8_t> bytes,
                               std::optional<std::int64_t> unpack_above = {});

}  // namespace dpiframe::parquet
