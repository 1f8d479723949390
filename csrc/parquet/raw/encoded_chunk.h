// One column chunk of raw values, straight to the codes of features.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "parquet/page_reader.h"
#include "parquet/raw/plain_values.h"
#include "parquet/raw/read_encoded.h"

namespace dpiframe::parquet {

// Encodes `count` PLAIN values for each target: codes[t] + the position of the value.
void encode_plain(Bytes values, RawKind kind, std::size_t count,
                  std::span<const EncodedTarget> targets, std::span<Code* const> codes);

class EncodedChunkReader {
 public:
  // Reads the chunk to the targets from their `row` on. kPagePadding bytes behind it must be
  // readable. std::invalid_argument where it is corrupt, or its encoding is not known here.
  void read(Bytes chunk, const ChunkForm& form, RawKind kind,
            std::span<const EncodedTarget> targets, std::int64_t row);
  void trim();

 private:
  void take_dictionary(const PageContents& page, RawKind kind,
                       std::span<const EncodedTarget> targets);
  void read_data(const PageContents& page, bool optional, RawKind kind,
                 std::span<const EncodedTarget> targets, std::int64_t row);

  Bytes plain_values(const PageContents& page, RawKind kind, std::int64_t count);

  PageReader pages_;
  PlainValues plain_;
  std::int64_t most_of_text_ = 0;
  std::vector<std::vector<Code>> dictionaries_;  // [targets] of the codes of a dictionary's values
  std::vector<std::vector<Code>> staged_;        // [targets] of the codes of a page without nulls
};

}  // namespace dpiframe::parquet
