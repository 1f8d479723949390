#include "parquet/lists/transpose.h"

#include <algorithm>

#include "common/processor.h"

namespace dpiframe::parquet {
namespace {

constexpr std::int64_t kBlock = 8;  // rows and places that are written at one time

}  // namespace

template <class Number>
void transpose(std::span<const Number* const> lists, std::span<Number* const> places,
               std::int64_t row) {
  const std::int64_t rows = std::ssize(lists), length = std::ssize(places);
#ifdef __x86_64__
  if (has_avx2() && std::min(rows, length) >= kBlockSide<Number>)
    return transpose_avx2(lists, places, row);
#endif
  for (std::int64_t first = 0; first < length; first += kBlock) {
    const std::int64_t stop = std::min(first + kBlock, length);
    for (std::int64_t r = 0; r < rows; r += kBlock) {
      const std::int64_t end = std::min(r + kBlock, rows);
      for (std::int64_t p = first; p < stop; ++p)
        for (std::int64_t i = r; i < end; ++i) places[p][row + i] = lists[i][p];
    }
  }
}

template void transpose(std::span<const std::int32_t* const>, std::span<std::int32_t* const>,
                        std::int64_t);
template void transpose(std::span<const std::int64_t* const>, std::span<std::int64_t* const>,
                        std::int64_t);
template void transpose(std::span<const float* const>, std::span<float* const>, std::int64_t);

}  // namespace dpiframe::parquet
