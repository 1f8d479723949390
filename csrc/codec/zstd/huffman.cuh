// The Huffman code of literals: RFC 8878, 4.2.
#pragma once

#include "codec/zstd/fse.cuh"
#include "codec/zstd/workspace.cuh"

namespace dpiframe::zstd {

// FSE-compressed weights: two interleaved states, until the bits run out.
DPIF_HOST_DEVICE bool read_compressed_weights(Input input, Workspace& workspace, int& num) {
  FseShape shape;
  if (!read_distribution(input, kWeightsLog, 256, workspace.counts, shape)) return false;
  build_table(workspace.weights_table, workspace.counts, shape, [](int) { return 0; });
  BackwardBits bits;
  if (!bits.start(input)) return false;
  bits.refill();
  int state = bits.read(shape.log);
  int other = bits.read(shape.log);
  if (bits.left() < 0) return false;
  for (num = 0; num < 254;) {
    const FseEntry entry{workspace.weights_table[state]};
    if (entry.symbol() > kMaxWeight) return false;
    if (lanes::index() == 0) workspace.weights[num] = static_cast<std::uint8_t>(entry.symbol());
    ++num;
    bits.refill();
    state = other;
    other = entry.base() + bits.read(entry.bits());
    if (bits.left() >= 0) continue;
    const int last = FseEntry{workspace.weights_table[state]}.symbol();
    if (lanes::index() == 0) workspace.weights[num] = static_cast<std::uint8_t>(last);
    ++num;
    return last <= kMaxWeight;
  }
  return false;
}

// Consumes the weights of all symbols but the last, which follows from them.
DPIF_HOST_DEVICE bool read_weights(Input& input, Workspace& workspace, int& num) {
  std::uint32_t head = 0;
  Input compressed;
  if (!input.read(1, head)) return false;
  if (head < 128) {
    const bool fine = input.split(static_cast<int>(head), compressed) &&
                      read_compressed_weights(compressed, workspace, num);
    lanes::sync();
    return fine;
  }
  num = static_cast<int>(head) - 127;
  if (!input.split((num + 1) / 2, compressed)) return false;
  bool fine = true;
  for (int i = lanes::index(); i < num; i += lanes::kCount) {
    const int weight = i % 2 == 0 ? compressed.at[i / 2] >> 4 : compressed.at[i / 2] & 0xf;
    fine &= weight <= kMaxWeight;
    workspace.weights[i] = static_cast<std::uint8_t>(weight);
  }
  fine = lanes::all(fine);
  lanes::sync();
  return fine;
}

// Gives the last symbol its weight: the sum of 2^(weight - 1) of all symbols is a power of 2, whose
// exponent `log` is the number of bits of the longest code.
DPIF_HOST_DEVICE bool complete_weights(Workspace& workspace, int& num, int& log) {
  for (int rank = 1 + lanes::index(); rank <= kMaxWeight; rank += lanes::kCount) {
    int found = 0;
    for (int i = 0; i < num; ++i) found += workspace.weights[i] == rank;
    workspace.ranks[rank] = static_cast<std::uint16_t>(found);
  }
  lanes::sync();
  int shares = 0;
  for (int rank = 1; rank <= kMaxWeight; ++rank) shares += workspace.ranks[rank] << (rank - 1);
  if (shares == 0) return false;
  log = highest_bit(shares) + 1;
  const int rest = (1 << log) - shares;
  if (log > kMaxCodeBits || (rest & (rest - 1)) != 0) return false;
  const int last = highest_bit(rest) + 1;
  const int longest = workspace.ranks[1] + (last == 1 ? 1 : 0);
  lanes::sync();
  if (lanes::index() == 0) {
    workspace.weights[num] = static_cast<std::uint8_t>(last);
    ++workspace.ranks[last];
  }
  ++num;
  lanes::sync();
  return longest >= 2;  // the longest codes come in pairs
}

// The first table entry of each symbol, in order of weight, then of symbol. A lane does a weight.
DPIF_HOST_DEVICE void place_symbols(Workspace& workspace, int num) {
  for (int rank = 1 + lanes::index(); rank <= kMaxWeight; rank += lanes::kCount) {
    int start = 0;
    for (int lighter = 1; lighter < rank; ++lighter)
      start += workspace.ranks[lighter] << (lighter - 1);
    for (int i = 0; i < num; ++i) {
      if (workspace.weights[i] != rank) continue;
      workspace.starts[i] = static_cast<std::uint16_t>(start);
      start += 1 << (rank - 1);
    }
  }
  lanes::sync();
}

// Consumes a Huffman tree description and fills workspace.huffman; its longest code has `log` bits.
DPIF_HOST_DEVICE bool read_huffman(Input& input, Workspace& workspace, int& log) {
  int num = 0;
  if (!read_weights(input, workspace, num) || !complete_weights(workspace, num, log)) return false;
  place_symbols(workspace, num);
  for (int symbol = 0; symbol < num; ++symbol) {
    const int weight = workspace.weights[symbol];
    if (weight == 0) continue;
    const int start = workspace.starts[symbol];
    const auto entry = static_cast<std::uint16_t>(symbol | (log + 1 - weight) << 8);
    for (int i = lanes::index(); i < 1 << (weight - 1); i += lanes::kCount)
      workspace.huffman[start + i] = entry;
  }
  lanes::sync();
  return true;
}

}  // namespace dpiframe::zstd
