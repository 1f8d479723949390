// Numbers that parquet's format gives its names: parquet.thrift of apache/parquet-format.
#pragma once

#include <cstdint>

#include "codec/decompress.h"

namespace dpiframe::parquet {

enum class PhysicalType : std::int32_t {
  kBoolean = 0,
  kInt32 = 1,
  kInt64 = 2,
  kInt96 = 3,
  kFloat = 4,
  kDouble = 5,
  kByteArray = 6,
  kFixedLenByteArray = 7
};

enum class Encoding : std::int32_t {
  kPlain = 0,
  kPlainDictionary = 2,
  kRle = 3,
  kBitPacked = 4,
  kDeltaBinaryPacked = 5,
  kDeltaLengthByteArray = 6,
  kDeltaByteArray = 7,
  kRleDictionary = 8,
  kByteStreamSplit = 9
};

enum class PageType : std::int32_t { kData = 0, kIndex = 1, kDictionary = 2, kDataV2 = 3 };

}  // namespace dpiframe::parquet
