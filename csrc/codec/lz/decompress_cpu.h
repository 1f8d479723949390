// Snappy and LZ4 by the code that GPUs run, on this thread.
#pragma once

#include "common/bytes.h"

namespace dpiframe {

// Both fill `out` to its end; std::invalid_argument where `compressed` does not give exactly that.
void unsnappy(Bytes compressed, std::span<std::uint8_t> out);
void unlz4(Bytes compressed, std::span<std::uint8_t> out);

}  // namespace dpiframe
