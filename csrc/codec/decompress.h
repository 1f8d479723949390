// The codecs of parquet pages that are read here. zstd is the system's libzstd, loaded at run time;
// where there is none, our own code, which is slower and refuses frames with a checksum.
#pragma once

#include "parquet/compact_reader.h"
#include "parquet/format.h"

namespace dpiframe::parquet {

bool can_decompress(Codec codec);

// Fills `out` to its end; throws std::invalid_argument where `packed` does not give exactly that.
void decompress(Codec codec, Bytes packed, std::span<std::uint8_t> out);

// As `decompress`, for snappy's raw format.
void decompress_snappy(Bytes packed, std::span<std::uint8_t> out);

}  // namespace dpiframe::parquet
