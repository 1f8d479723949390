// Compiled with -mavx2, and called only where the processor has it.
#ifdef __x86_64__
#include <immintrin.h>

#include <array>
#include <bit>

#include "parquet/raw/spread.h"

namespace dpiframe::parquet {
namespace {

// For each byte of levels: which of the next codes each of its eight rows takes, 0xff for none.
using Orders = std::array<std::array<std::uint8_t, 8>, 256>;

constexpr Orders kOrders = [] {
  Orders orders{};
  for (int byte = 0; byte < 256; ++byte)
    for (int i = 0, next = 0; i < 8; ++i)
      orders[byte][i] = byte >> i & 1 ? static_cast<std::uint8_t>(next++) : 0xff;
  return orders;
}();

}  // namespace

std::int64_t spread_avx2(const std::uint8_t* bits, std::int64_t bytes, const std::int32_t* codes,
                         std::int32_t missing, std::int32_t* out) {
  const __m256i absent = _mm256_set1_epi32(missing);
  const std::int32_t* next = codes;
  for (std::int64_t b = 0; b < bytes; ++b) {
    const __m128i order =
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kOrders[bits[b]].data()));
    const __m256i lanes = _mm256_cvtepi8_epi32(order);  // negative for none
    const __m256i found = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(next));
    const __m256i taken = _mm256_permutevar8x32_epi32(found, lanes);
    const __m256i none = _mm256_srai_epi32(lanes, 31);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * b),
                        _mm256_blendv_epi8(taken, absent, none));
    next += std::popcount(static_cast<unsigned>(bits[b]));
  }
  return next - codes;
}

}  // namespace dpiframe::parquet
#endif
