// XXH64 of many values in one call, for turning category values into ids.
//
// The algorithm is Yann Collet's, as the xxHash specification gives it: the same bytes and seed
// give the same hash in every implementation.
#pragma once

#include <cstdint>

namespace dpiframe {

std::uint64_t xxh64(const void* data, std::int64_t num_bytes, std::uint64_t seed);

// out[i] = XXH64(data[offsets[i] : offsets[i + 1]]), i < size. Throws where the offsets [size + 1]
// decrease or leave [0, num_bytes].
void xxh64_strings(const std::int32_t* offsets, const std::uint8_t* data, std::int64_t num_bytes,
                   std::int64_t size, std::uint64_t seed, std::uint64_t* out);
void xxh64_strings(const std::int64_t* offsets, const std::uint8_t* data, std::int64_t num_bytes,
                   std::int64_t size, std::uint64_t seed, std::uint64_t* out);

// out[i] = XXH64(the 8 little-endian bytes of values[i])
void xxh64_int64(const std::int64_t* values, std::int64_t size, std::uint64_t seed,
                 std::uint64_t* out);

}  // namespace dpiframe
