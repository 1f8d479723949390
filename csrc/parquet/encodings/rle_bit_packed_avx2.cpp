// Compiled with -mavx2, and called only where the processor has it.
#ifdef __x86_64__
#include <immintrin.h>

#include <array>
#include <vector>

#include "parquet/encodings/rle_bit_packed.h"

namespace dpiframe::parquet {
namespace {

// An index and the bits before it in its first byte must fit into the 4 bytes of a lane.
constexpr int kWidest = 25;

// How to take eight indices apart: the first four lie in the 16 bytes from the group's start on,
// the others in the 16 bytes from `upper` on.
struct Unpacking {
  explicit Unpacking(int width) : upper(4 * width / 8) {
    alignas(32) std::array<std::uint8_t, 32> from;
    alignas(32) std::array<std::int32_t, 8> shift;
    for (int i = 0; i < 8; ++i) {
      const int bit = i * width - (i < 4 ? 0 : 8 * upper);
      for (int b = 0; b < 4; ++b) from[4 * i + b] = static_cast<std::uint8_t>(bit / 8 + b);
      shift[i] = bit % 8;
    }
    bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(from.data()));
    shifts = _mm256_load_si256(reinterpret_cast<const __m256i*>(shift.data()));
    mask = _mm256_set1_epi32((1 << width) - 1);
  }

  __m256i operator()(const std::uint8_t* group) const {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(group));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(group + upper));
    const __m256i lanes = _mm256_shuffle_epi8(_mm256_set_m128i(high, low), bytes);
    return _mm256_and_si256(_mm256_srlv_epi32(lanes, shifts), mask);
  }

  int upper;
  __m256i bytes;
  __m256i shifts;
  __m256i mask;
};

void store_values(const std::int32_t* dictionary, __m256i indices, std::int32_t* out) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                      _mm256_i32gather_epi32(dictionary, indices, 4));
}

void store_values(const std::int64_t* dictionary, __m256i indices, std::int64_t* out) {
  const auto* base = reinterpret_cast<const long long*>(dictionary);
  auto* to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, _mm256_i32gather_epi64(base, _mm256_castsi256_si128(indices), 8));
  _mm256_storeu_si256(to + 1,
                      _mm256_i32gather_epi64(base, _mm256_extracti128_si256(indices, 1), 8));
}

// Runs are short: what is the same for all of a width is made once.
const Unpacking& unpacking(int width) {
  static const std::vector<Unpacking> kinds = [] {
    std::vector<Unpacking> made;
    for (int w = 0; w <= kWidest; ++w) made.emplace_back(w);
    return made;
  }();
  return kinds[width];
}

}  // namespace

template <class Number>
std::int64_t look_up_avx2(const PackedIndices& indices, const Number* dictionary,
                          std::uint32_t last, Number* out) {
  if (indices.width > kWidest) return 0;
  const Unpacking& unpack = unpacking(indices.width);
  const __m256i limit = _mm256_set1_epi32(static_cast<int>(last));
  __m256i largest = _mm256_setzero_si256();
  const std::uint8_t* group = indices.bits;
  std::int64_t i = 0;
  for (; i + 8 <= indices.count; i += 8, group += indices.width) {
    const __m256i found = unpack(group);
    largest = _mm256_max_epu32(largest, found);
    store_values(dictionary, _mm256_min_epu32(found, limit), out + i);
  }
  const __m256i inside = _mm256_cmpeq_epi32(_mm256_max_epu32(largest, limit), limit);
  return _mm256_movemask_epi8(inside) == -1 ? i : -1;
}

template std::int64_t look_up_avx2(const PackedIndices&, const std::int32_t*, std::uint32_t,
                                   std::int32_t*);
template std::int64_t look_up_avx2(const PackedIndices&, const std::int64_t*, std::uint32_t,
                                   std::int64_t*);

}  // namespace dpiframe::parquet
#endif
