// Data pages in an encoding that stores differences, or bytes apart, as the PLAIN values they mean.
#pragma once

#include <cstdint>
#include <vector>

#include "parquet/column_chunk.h"

namespace dpiframe::parquet {

class PlainValues {
 public:
  // The first `count` values of a page, valid until the next call. Texts are of `most_of_text`
  // bytes on average at most. std::invalid_argument where the page is corrupt, or its encoding is
  // not known here.
  Bytes texts(const PageContents& page, std::int64_t count, std::int64_t most_of_text);
  // Numbers of 4 bytes (int32_t) or 8 (int64_t) of any kind.
  template <class Number>
  Bytes numbers(const PageContents& page, std::int64_t count);
  void trim();

 private:
  // Takes `count` lengths from the front of `values`.
  void take_lengths(Bytes& values, std::int64_t count, std::vector<std::int32_t>& lengths);

  ScratchBytes plain_;
  std::vector<std::int32_t> lengths_, prefixes_;
};

}  // namespace dpiframe::parquet
