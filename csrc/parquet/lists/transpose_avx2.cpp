// Compiled with -mavx2, and called only where the processor has it.
#ifdef __x86_64__
#include <immintrin.h>

#include <algorithm>

#include "parquet/lists/transpose.h"

namespace dpiframe::parquet {
namespace {

template <class Number>
__m256i load(const Number* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

// Vectors of 64-bit numbers: v[i][j] becomes v[j][i].
[[gnu::always_inline]] inline void transpose_4(__m256i* v) {
  const __m256i a = _mm256_unpacklo_epi64(v[0], v[1]), b = _mm256_unpackhi_epi64(v[0], v[1]);
  const __m256i c = _mm256_unpacklo_epi64(v[2], v[3]), d = _mm256_unpackhi_epi64(v[2], v[3]);
  v[0] = _mm256_permute2x128_si256(a, c, 0x20), v[1] = _mm256_permute2x128_si256(b, d, 0x20);
  v[2] = _mm256_permute2x128_si256(a, c, 0x31), v[3] = _mm256_permute2x128_si256(b, d, 0x31);
}

// Of 32-bit numbers: those of neighbouring vectors to pairs, then the pairs.
[[gnu::always_inline]] inline void transpose_8(__m256i* v) {
  __m256i pairs[8];
  for (int i = 0; i < 4; ++i) {
    pairs[i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    pairs[4 + i] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
  transpose_4(pairs), transpose_4(pairs + 4);
  // pairs[i] begins with place 0, 1, 4, 5; pairs[4 + i] with 2, 3, 6, 7.
  v[0] = pairs[0], v[1] = pairs[1], v[2] = pairs[4], v[3] = pairs[5];
  v[4] = pairs[2], v[5] = pairs[3], v[6] = pairs[6], v[7] = pairs[7];
}

}  // namespace

template <class Number>
void transpose_avx2(std::span<const Number* const> lists, std::span<Number* const> places,
                    std::int64_t row) {
  constexpr std::int64_t kSide = kBlockSide<Number>;
  const std::int64_t rows = std::ssize(lists), length = std::ssize(places);
  // The last blocks overlap those before them.
  for (std::int64_t first = 0; first < length; first += kSide) {
    const std::int64_t p = std::min(first, length - kSide);
    for (std::int64_t begin = 0; begin < rows; begin += kSide) {
      const std::int64_t r = std::min(begin, rows - kSide);
      __m256i block[kSide];
      for (std::int64_t i = 0; i < kSide; ++i) block[i] = load(lists[r + i] + p);
      if constexpr (kSide == 8)
        transpose_8(block);
      else
        transpose_4(block);
      for (std::int64_t i = 0; i < kSide; ++i)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(places[p + i] + row + r), block[i]);
    }
  }
}

template void transpose_avx2(std::span<const std::int32_t* const>, std::span<std::int32_t* const>,
                             std::int64_t);
template void transpose_avx2(std::span<const std::int64_t* const>, std::span<std::int64_t* const>,
                             std::int64_t);
template void transpose_avx2(std::span<const float* const>, std::span<float* const>, std::int64_t);

}  // namespace dpiframe::parquet
#endif
