// A copy by non-temporal stores, to memory that this core will not read again soon.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace dpiframe {

// As memcpy, but no cache line of the target is fetched only to be overwritten, which is a third of
// a copy's traffic: memory bandwidth is what many cores wait for.
inline void copy_past_caches(void* target, const void* source, std::size_t bytes) {
  auto* to = static_cast<char*>(target);
  const auto* from = static_cast<const char*>(source);
#if defined(__x86_64__)
  constexpr std::size_t kStep = sizeof(__m128i);
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % kStep;
  if (bytes >= head + kStep) {
    std::memcpy(to, from, head);
    std::size_t i = head;
    for (; i + kStep <= bytes; i += kStep)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    _mm_sfence();
    to += i, from += i, bytes -= i;
  }
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace dpiframe
