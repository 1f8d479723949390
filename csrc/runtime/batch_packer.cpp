#include "runtime/batch_packer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace dpiframe {
namespace {

constexpr std::int64_t kPart = 16384;           // samples of one column a task
constexpr std::int64_t kSerialNumbers = 65536;  // the caller packs fewer alone
constexpr int kMaxThreads = 16;
// Longer than the caller's own work between two batches; after a longer pause packing is not the
// bottleneck.
constexpr std::chrono::microseconds kSpin{50};

template <class Number>
Number read(const char* source) {  // at any address
  Number value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

// An id whose upper half is not 0 becomes -1; one from 2^31 to 2^32 - 1 becomes negative as it is.
template <class From, class To>
To converted(From value) {
  if constexpr (sizeof(From) > sizeof(To))
    return static_cast<To>(value) | (value >> 32 != 0 ? -1 : 0);
  else
    return value;
}

#if defined(__x86_64__)
__m128i load_16_bytes(const char* source) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
}

// Four numbers of 4 bytes, as read() and converted() would give them.
template <class From>
__m128i read_four(const char* source) {
  if constexpr (sizeof(From) == sizeof(std::int32_t)) return load_16_bytes(source);
  const __m128 a = _mm_castsi128_ps(load_16_bytes(source));
  const __m128 b = _mm_castsi128_ps(load_16_bytes(source + 16));
  const __m128i lower = _mm_castps_si128(_mm_shuffle_ps(a, b, 0x88));
  const __m128i upper = _mm_castps_si128(_mm_shuffle_ps(a, b, 0xdd));
  const __m128i fits = _mm_cmpeq_epi32(upper, _mm_setzero_si128());
  return _mm_or_si128(lower, _mm_andnot_si128(fits, _mm_set1_epi32(-1)));
}

// Packs a contiguous column but for its last few numbers; returns how many. Non-temporal stores,
// since the device reads the result and this processor does not: no cache line is fetched to be
// overwritten, which would be a third of the copy's traffic.
template <class From>
std::int64_t pack_fours(const char* source, std::int64_t size, std::int32_t* target) {
  std::int64_t i = 0;
  for (; i < size && reinterpret_cast<std::uintptr_t>(target + i) % sizeof(__m128i) != 0; ++i)
    target[i] = converted<From, std::int32_t>(read<From>(source + i * sizeof(From)));
  for (; i + 4 <= size; i += 4)
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i),
                     read_four<From>(source + i * sizeof(From)));
  _mm_sfence();
  return i;
}
#endif

// Samples [begin, end) of one column.
template <class From, class To>
void pack_part(const IdColumn& column, std::int64_t begin, std::int64_t end, To* target) {
  const char* source = static_cast<const char*>(column.data);
  std::int64_t i = begin;
#if defined(__x86_64__)
  if constexpr (sizeof(To) == sizeof(std::int32_t)) {
    if (column.stride == sizeof(From))
      i += pack_fours<From>(source + begin * sizeof(From), end - begin, target + begin);
  }
#endif
  for (; i < end; ++i) target[i] = converted<From, To>(read<From>(source + i * column.stride));
}

template <class To>
void pack_part(const IdColumn& column, std::int64_t begin, std::int64_t end, To* target) {
  if (column.is_int64)
    pack_part<std::int64_t, To>(column, begin, end, target);
  else
    pack_part<std::int32_t, To>(column, begin, end, target);
}

}  // namespace

BatchPacker::BatchPacker(int num_threads)
    : pool_(num_threads > 0 ? num_threads : std::min(kMaxThreads, num_usable_processors()), kSpin) {
}

void BatchPacker::pack(std::span<const IdColumn> columns, std::int64_t size,
                       std::size_t target_bytes, void* target) {
  const std::int64_t parts = (size + kPart - 1) / kPart;
  const std::int64_t total = parts * static_cast<std::int64_t>(columns.size());
  std::atomic<std::int64_t> next = 0;
  const auto work = [&](int) {
    for (std::int64_t i = next++; i < total; i = next++) {
      const std::int64_t c = i / parts;
      const std::int64_t begin = i % parts * kPart;
      const std::int64_t end = std::min(begin + kPart, size);
      if (target_bytes == sizeof(std::int64_t))
        pack_part(columns[c], begin, end, static_cast<std::int64_t*>(target) + c * size);
      else
        pack_part(columns[c], begin, end, static_cast<std::int32_t*>(target) + c * size);
    }
  };
  const std::int64_t numbers = size * static_cast<std::int64_t>(columns.size());
  const std::int64_t threads = numbers < kSerialNumbers ? 1 : num_threads();
  pool_.run(static_cast<int>(std::min(threads, total)), work);
}

}  // namespace dpiframe
