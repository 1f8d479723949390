// The literals of a block: RFC 8878, 3.1.1.3.1.
#pragma once

#include "codec/copy.cuh"
#include "codec/zstd/huffman.cuh"

namespace dpiframe::zstd {

enum class LiteralsKind { kRaw, kRle, kCompressed, kTreeless };

struct LiteralsSection {
  LiteralsKind kind;
  int streams;
  int size;          // of the literals
  Input compressed;  // raw bytes, the repeated byte, or Huffman streams
};

// Consumes the literals section.
DPIF_HOST_DEVICE bool read_literals_section(Input& block, LiteralsSection& section) {
  if (block.size == 0) return false;
  const int first = block.at[0];
  const int form = first >> 2 & 3;
  section.kind = static_cast<LiteralsKind>(first & 3);
  std::uint32_t head = 0;
  section.streams = 1;
  if (section.kind == LiteralsKind::kRaw || section.kind == LiteralsKind::kRle) {
    const int bytes = form == 1 ? 2 : form == 3 ? 3 : 1;
    if (!block.read(bytes, head)) return false;
    section.size = static_cast<int>(bytes == 1 ? head >> 3 : head >> 4);
    const int stored = section.kind == LiteralsKind::kRaw ? section.size : 1;
    return block.split(stored, section.compressed);
  }
  const int bytes = form < 2 ? 3 : form + 2, bits = 4 * bytes - 2;
  if (block.size < bytes) return false;
  const std::uint64_t wide = block.peek(4 < bytes ? 4 : bytes) |
                             (bytes > 4 ? static_cast<std::uint64_t>(block.at[4]) << 32 : 0);
  block.skip(bytes);
  section.streams = form == 0 ? 1 : 4;
  section.size = static_cast<int>(wide >> 4 & ((1u << bits) - 1));
  return block.split(static_cast<int>(wide >> (4 + bits) & ((1u << bits) - 1)), section.compressed);
}

// A Huffman stream, decoded by one lane. Stores 8 symbols at a time where `out` is aligned.
class HuffmanStream {
 public:
  DPIF_HOST_DEVICE HuffmanStream(const std::uint16_t* table, int log) : table_(table), log_(log) {}

  // Whether the stream holds exactly `size` symbols.
  DPIF_HOST_DEVICE bool decode(const Input& input, std::uint8_t* out, int size) {
    if (!bits_.start(input)) return false;
    const Words words(out, size);
    int i = 0;
    DPIF_NO_UNROLL
    while (i < size) {
      if (i >= words.begin && i < words.end) {
        store_word(out + i, next_word());
        i += 8;
      } else {
        out[i++] = next_with_refill();
      }
    }
    return bits_.left() == 0;
  }

 private:
  DPIF_HOST_DEVICE std::uint32_t next() {
    const std::uint32_t entry = table_[bits_.top() >> (32 - log_)];
    bits_.skip(static_cast<int>(entry >> 8));
    return entry & 0xff;
  }
  DPIF_HOST_DEVICE std::uint8_t next_with_refill() {
    bits_.refill();
    return static_cast<std::uint8_t>(next());
  }
  // 3 symbols take 33 bits at most: a second refill adds to the 32 that are ready where none was.
  DPIF_HOST_DEVICE std::uint64_t next_word() {
    std::uint32_t low = 0, high = 0;
    DPIF_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (i % 3 == 0) bits_.refill(), bits_.refill();
      (i < 4 ? low : high) |= next() << (8 * (i % 4));
    }
    return low | static_cast<std::uint64_t>(high) << 32;
  }

  BackwardBits bits_;
  const std::uint16_t* table_;
  int log_;
};

// 4 streams follow the sizes of the first 3; the first 3 have (size + 3) / 4 symbols each.
DPIF_HOST_DEVICE bool find_stream(Input compressed, int stream, int size, Input& input, int& first,
                                  int& symbols) {
  std::uint32_t sizes[3];
  for (auto& bytes : sizes)
    if (!compressed.read(2, bytes)) return false;
  const int share = (size + 3) / 4;
  first = stream * share;
  symbols = stream < 3 ? share : size - 3 * share;
  for (int i = 0; i < 3; ++i) {
    if (!compressed.split(static_cast<int>(sizes[i]), input)) return false;
    if (i == stream) return true;
  }
  input = compressed;
  return true;
}

// A lane decodes a stream.
DPIF_HOST_DEVICE bool decode_streams(const LiteralsSection& section, Input compressed,
                                     const Workspace& workspace, int log, std::uint8_t* out) {
  if (section.streams == 4 && section.size < 6)
    return false;  // or the last would have fewer than 0
  bool fine = true;
  for (int i = lanes::index(); i < section.streams; i += lanes::kCount) {
    Input input = compressed;
    int first = 0, symbols = section.size;
    if (section.streams == 4)
      fine &= find_stream(compressed, i, section.size, input, first, symbols);
    if (!fine) break;
    fine &= HuffmanStream(workspace.huffman, log).decode(input, out + first, symbols);
  }
  fine = lanes::all(fine);
  lanes::sync();
  return fine;
}

// Decodes all literals to `out`.
DPIF_HOST_DEVICE bool decode_literals(const LiteralsSection& section, Workspace& workspace,
                                      int& huffman_log, std::uint8_t* out) {
  Input compressed = section.compressed;
  switch (section.kind) {
    case LiteralsKind::kRaw:
      copy_bytes(out, compressed.at, section.size);
      break;
    case LiteralsKind::kRle:
      fill_bytes(out, compressed.at[0], section.size);
      break;
    case LiteralsKind::kCompressed:
    case LiteralsKind::kTreeless:
      if (section.kind == LiteralsKind::kCompressed &&
          !read_huffman(compressed, workspace, huffman_log))
        return false;
      return huffman_log > 0 && decode_streams(section, compressed, workspace, huffman_log, out);
  }
  lanes::sync();
  return true;
}

}  // namespace dpiframe::zstd
