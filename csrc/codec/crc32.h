// The checksum of parquet pages: CRC-32 as gzip has it, eight bytes a step.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "common/bytes.h"

namespace dpiframe {

using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr CrcTables make_crc_tables() {
  CrcTables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    tables[0][i] = crc;
  }
  for (std::size_t t = 1; t < 8; ++t)
    for (std::size_t i = 0; i < 256; ++i)
      tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 0xff];
  return tables;
}

inline std::uint32_t crc32(Bytes bytes) {
  static constexpr CrcTables kTables = make_crc_tables();
  std::uint32_t crc = ~0u;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t next;
    std::memcpy(&next, bytes.data() + i, 8);
    next ^= crc;
    crc = 0;
    for (int b = 0; b < 8; ++b) crc ^= kTables[7 - b][next >> (8 * b) & 0xff];
  }
  for (; i < bytes.size(); ++i) crc = crc >> 8 ^ kTables[0][(crc ^ bytes[i]) & 0xff];
  return ~crc;
}

}  // namespace dpiframe
