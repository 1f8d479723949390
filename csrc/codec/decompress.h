// The codecs of parquet pages that are read here. zstd is the system's libzstd, loaded at run time;
// where there is none, our own decoder, which is slower and refuses frames with a checksum.
#pragma once

#include "codec/codec.h"
#include "common/bytes.h"

namespace dpiframe {

bool can_decompress(Codec codec);

// The most bytes that so many compressed ones can give.
std::int64_t most_decompressed(Codec codec, std::int64_t compressed_bytes);

// Fills `out` to its end; throws std::invalid_argument where `compressed` does not give exactly
// that.
void decompress(Codec codec, Bytes compressed, std::span<std::uint8_t> out);

}  // namespace dpiframe
