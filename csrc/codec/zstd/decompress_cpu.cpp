#include "codec/zstd/decompress_cpu.h"

#include <vector>

#include "codec/zstd/frame.h"
#include "common/check.h"

namespace dpiframe {

void unzstd(std::span<const std::uint8_t> packed, std::span<std::uint8_t> out) {
  DPIF_CHECK(packed.size() <= zstd::kMostBytes && out.size() <= zstd::kMostBytes,
             "a zstd page has ", packed.size(), " bytes, unpacked ", out.size(), "; at most are ",
             zstd::kMostBytes);
  thread_local zstd::Work work;
  thread_local std::vector<std::uint8_t> literals;
  if (literals.size() < out.size()) literals.resize(out.size());
  const bool fine = zstd::decode_frame({packed.data(), static_cast<int>(packed.size())}, out.data(),
                                       static_cast<int>(out.size()), literals.data(), work);
  DPIF_CHECK(fine, "a zstd page does not unpack to its ", out.size(), " bytes");
}

}  // namespace dpiframe
