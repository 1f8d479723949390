#include "scheduler/batch_packer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <type_traits>

namespace dpiframe {
namespace {

constexpr std::int64_t kPart = 16384;           // rows of one column that a thread packs at once
constexpr std::int64_t kSerialNumbers = 65536;  // fewer are packed by the caller alone
constexpr int kMaxThreads = 16;
// Longer than a stream's own work between two batches; where the pause is longer, packing is not
// what the stream waits for.
constexpr std::chrono::microseconds kSpin{50};

// An id whose upper half is not 0 becomes -1; from 2^31 to 2^32 - 1 the sign is set as it is.
std::int32_t narrowed(std::int32_t lower, std::int32_t upper) {
  return lower | (upper != 0 ? -1 : 0);
}

template <class From, class To>
To converted(From value) {
  if constexpr (sizeof(From) > sizeof(To))
    return narrowed(static_cast<std::int32_t>(value), static_cast<std::int32_t>(value >> 32));
  else
    return value;
}

// `size` little-endian int64 read as their halves, which compilers make vector code of.
void narrow(const std::int32_t* halves, std::int64_t size, std::int32_t* __restrict target) {
  for (std::int64_t i = 0; i < size; ++i) target[i] = narrowed(halves[2 * i], halves[2 * i + 1]);
}

// Rows [begin, end) of one column. Numbers may lie at any address, so they are read by memcpy.
template <class From, class To>
void pack_part(const IdColumn& column, std::int64_t begin, std::int64_t end, To* target) {
  const char* source = static_cast<const char*>(column.data) + begin * column.stride;
  const std::int64_t size = end - begin;
  target += begin;
  if (column.stride == sizeof(From)) {
    if constexpr (std::is_same_v<From, To>) {
      std::memcpy(target, source, size * sizeof(To));
      return;
    } else if (sizeof(From) > sizeof(To) &&
               reinterpret_cast<std::uintptr_t>(source) % alignof(std::int32_t) == 0) {
      narrow(reinterpret_cast<const std::int32_t*>(source), size,
             reinterpret_cast<std::int32_t*>(target));
      return;
    }
  }
  for (std::int64_t i = 0; i < size; ++i, source += column.stride) {
    From value;
    std::memcpy(&value, source, sizeof(value));
    target[i] = converted<From, To>(value);
  }
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
