// gzip (RFC 1952) on the host.
#pragma once

#include "common/bytes.h"

namespace dpiframe {

// Fills `out` to its end from one member or several; std::invalid_argument where `compressed` does
// not give exactly that, or a checksum is wrong.
void gunzip(Bytes compressed, std::span<std::uint8_t> out);

}  // namespace dpiframe
