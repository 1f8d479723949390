#pragma once

#include <array>
#include <cstdint>

namespace dpiframe {

// Numbered as CompressionCodec of parquet.thrift.
enum class Codec : std::int32_t { kNone = 0, kSnappy = 1, kGzip = 2, kZstd = 6, kLz4Raw = 7 };

// Those whose decoder a GPU runs as well.
inline constexpr std::array kGpuCodecs{Codec::kZstd, Codec::kSnappy, Codec::kLz4Raw};

}  // namespace dpiframe
