// Gives the values of a page without nulls to the rows that have one.
#pragma once

#include <cstdint>

#include "parquet/encodings/rle_bit_packed.h"

namespace dpiframe::parquet {

// Writes `count` codes to `out`: for each definition level that is 1 the next of `codes`, else
// `missing`. kSpreadPadding codes behind the last may be read.
constexpr std::int64_t kSpreadPadding = 8;
void spread_codes(Bytes levels, std::int64_t count, const std::int32_t* codes, std::int32_t missing,
                  std::int32_t* out);

// The same for the whole bytes of a bit-packed run by AVX2; returns how many codes were used.
std::int64_t spread_avx2(const std::uint8_t* bits, std::int64_t bytes, const std::int32_t* codes,
                         std::int32_t missing, std::int32_t* out);

}  // namespace dpiframe::parquet
