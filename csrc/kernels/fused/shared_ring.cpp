#include "kernels/fused/shared_ring.h"

#include "common/check.h"

namespace dpiframe {
namespace {

bool overlap(const RingPiece& a, const RingPiece& b) {
  return a.place < b.place + b.bytes && b.place < a.place + a.bytes;
}

}  // namespace

void place_in_ring(std::vector<RingPiece>& pieces, int ring_bytes) {
  const auto count = static_cast<int>(pieces.size());
  DPIF_CHECK(count >= kRingMostPieces, "a ring is for at least ", kRingMostPieces, " pieces, got ",
             count);
  int place = 0;
  for (RingPiece& piece : pieces) {
    if (place + piece.bytes > ring_bytes) place = 0;
    piece.place = static_cast<std::uint32_t>(place);
    place += piece.bytes;
  }
  for (int i = 0; i < count; ++i) {
    int& behind = pieces[i].behind;
    for (behind = 1; behind < kRingMostPieces; ++behind)
      if (overlap(pieces[i], pieces[(i - behind + count) % count])) break;
  }
}

}  // namespace dpiframe
