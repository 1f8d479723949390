#include "codec/lz/decompress_cpu.h"

#include "codec/lz/lz4.cuh"
#include "codec/lz/snappy.cuh"
#include "common/check.h"

namespace dpiframe {
namespace {

template <class Decode>
void decode(const char* name, Bytes compressed, std::span<std::uint8_t> out, Decode decode) {
  DPIF_CHECK(compressed.size() <= lz::kMaxBytes && out.size() <= lz::kMaxBytes, "a page of ", name,
             " has ", compressed.size(), " bytes, decompressed ", out.size(), "; at most are ",
             lz::kMaxBytes);
  lz::BatchBytes unused;
  const lz::Compressed in{compressed.data(), static_cast<int>(compressed.size())};
  DPIF_CHECK(decode(in, out.data(), static_cast<int>(out.size()), unused), "a page of ", name,
             " does not decompress to its ", out.size(), " bytes");
}

}  // namespace

void unsnappy(Bytes compressed, std::span<std::uint8_t> out) {
  decode("snappy", compressed, out, lz::decode_snappy);
}

void unlz4(Bytes compressed, std::span<std::uint8_t> out) {
  decode("LZ4", compressed, out, lz::decode_lz4);
}

}  // namespace dpiframe
