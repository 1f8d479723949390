#include "codec/gzip/gunzip.h"

#include <algorithm>

#include "codec/crc32.h"
#include "codec/gzip/inflate.h"
#include "common/check.h"

namespace dpiframe {
namespace {

Bytes behind(Bytes bytes, std::size_t count) {
  DPIF_CHECK(count <= bytes.size(), "a gzip page is cut off");
  return bytes.subspan(count);
}

std::uint32_t number(Bytes bytes, std::size_t count) {
  (void)behind(bytes, count);
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value |= std::uint32_t{bytes[i]} << (8 * i);
  return value;
}

Bytes behind_text(Bytes bytes) {
  const auto end = std::ranges::find(bytes, 0);
  return behind(bytes, end - bytes.begin() + 1);
}

Bytes behind_header(Bytes bytes) {
  enum Flags { kText = 1, kHeaderCrc = 2, kExtra = 4, kName = 8, kComment = 16 };
  constexpr std::size_t kHeaderBytes = 10;
  const Bytes rest = behind(bytes, kHeaderBytes);
  DPIF_CHECK(number(bytes, 3) == 0x088b1f && bytes[3] < 32, "a gzip page has no gzip header");
  const int flags = bytes[3];
  bytes = rest;
  if ((flags & kExtra) != 0) bytes = behind(bytes, 2 + number(bytes, 2));
  if ((flags & kName) != 0) bytes = behind_text(bytes);
  if ((flags & kComment) != 0) bytes = behind_text(bytes);
  return (flags & kHeaderCrc) != 0 ? behind(bytes, 2) : bytes;
}

}  // namespace

void gunzip(Bytes compressed, std::span<std::uint8_t> out) {
  thread_local gzip::Tables tables;
  std::size_t filled = 0;
  do {
    compressed = behind_header(compressed);
    const std::span<std::uint8_t> room = out.subspan(filled);
    const auto [read, written] = gzip::inflate(compressed, room, tables);
    compressed = compressed.subspan(read);
    DPIF_CHECK(number(compressed, 4) == crc32(room.first(written)) &&
                   number(behind(compressed, 4), 4) == static_cast<std::uint32_t>(written),
               "a gzip page's own checksum is wrong");
    compressed = compressed.subspan(8);
    filled += written;
  } while (!compressed.empty());
  DPIF_CHECK(filled == out.size(), "a gzip page does not decompress to its ", out.size(), " bytes");
}

}  // namespace dpiframe
