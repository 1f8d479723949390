#include "codec/zstd/decompress_cpu.h"

#include <vector>

#include "codec/zstd/frame.cuh"
#include "common/check.h"

namespace dpiframe {

void unzstd(std::span<const std::uint8_t> compressed, std::span<std::uint8_t> out) {
  DPIF_CHECK(compressed.size() <= zstd::kMaxBytes && out.size() <= zstd::kMaxBytes,
             "a zstd page has ", compressed.size(), " bytes, decompressed ", out.size(),
             "; at most are ", zstd::kMaxBytes);
  thread_local zstd::Workspace workspace;
  thread_local std::vector<std::uint8_t> literals;
  if (literals.size() < out.size()) literals.resize(out.size());
  const bool fine =
      zstd::decode_frame({compressed.data(), static_cast<int>(compressed.size())}, out.data(),
                         static_cast<int>(out.size()), literals.data(), workspace);
  DPIF_CHECK(fine, "a zstd page does not decompress to its ", out.size(), " bytes");
}

}  // namespace dpiframe
