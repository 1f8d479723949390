// XXH64, which turns category values into ids.
//
// The algorithm is Yann Collet's, as the xxHash specification gives it: the same bytes and seed
// give the same hash in every implementation.
#pragma once

#include <cstdint>

namespace dpiframe {

std::uint64_t xxh64(const void* data, std::int64_t num_bytes, std::uint64_t seed);

}  // namespace dpiframe
