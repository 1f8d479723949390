// Memory for embedding tables on the host: embedding rows of 64 bytes that start on a cache line
// cost one miss instead of two, and huge pages save the page walk of each random row.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace dpiframe {

// Not initialised; for std::free. Throws std::bad_alloc (MemoryError in Python).
inline void* allocate_table(std::size_t bytes) {
  constexpr std::size_t kCacheLine = 64;
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kCacheLine;
  const std::size_t padded = (bytes + alignment) / alignment * alignment;  // never 0
  void* data = std::aligned_alloc(alignment, padded);
  if (data == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  // A hint: where the system refuses, the pages are small and all else is the same.
  if (alignment == kHugePage) (void)madvise(data, padded, MADV_HUGEPAGE);
#endif
  return data;
}

}  // namespace dpiframe
