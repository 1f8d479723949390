// From lists, row by row, to the places of a model.
#pragma once

#include <cstdint>
#include <span>

namespace dpiframe::parquet {

// Writes places[p][row + i] = lists[i][p] for all lists and places. Number has 4 or 8 bytes.
template <class Number>
void transpose(std::span<const Number* const> lists, std::span<Number* const> places,
               std::int64_t row);

#ifdef __x86_64__
// Rows and places of a block: a vector of 32 bytes each.
template <class Number>
constexpr std::int64_t kBlockSide = 32 / sizeof(Number);

// The same on processors with AVX2, for a block's rows and places at least.
template <class Number>
void transpose_avx2(std::span<const Number* const> lists, std::span<Number* const> places,
                    std::int64_t row);
#endif

}  // namespace dpiframe::parquet
