// Decompresses a zstd frame: RFC 8878, from which it was written. The lanes of a warp decode it
// together: all call the same functions with the same arguments.
//
// Accepted is one frame without a dictionary and without a checksum of its content, which gives
// exactly the expected number of bytes: what writers of parquet make. Everything else is refused,
// and nothing is read or written outside the given memory.
#pragma once

#include "codec/zstd/execute.cuh"
#include "codec/zstd/literals.cuh"

namespace dpiframe::zstd {

constexpr int kMaxBytes = 1 << 30;  // of a frame, compressed or not, so that an int holds all sums
constexpr int kMaxBlockBytes = 128 << 10;

// What a block leaves to the next one.
struct FrameState {
  std::uint8_t* out;
  int size;
  std::uint8_t* literals;  // scratch, as large as `out`
  Workspace& workspace;
  int block_limit;
  int at = 0;           // in `out`
  int huffman_log = 0;  // 0: no Huffman code yet
  bool had_tables = false;
  RepeatOffsets repeat_offsets{};
};

// Consumes the frame header. The content size, if it is there, must be `size`.
DPIF_HOST_DEVICE bool read_frame_header(Input& compressed, int size, int& block_limit) {
  std::uint32_t magic = 0, head = 0, window = 0, dictionary = 0, low = 0, high = 0;
  if (!compressed.read(4, magic) || magic != 0xfd2fb528u || !compressed.read(1, head)) return false;
  const bool reserved = (head >> 3 & 1) != 0, checksum = (head >> 2 & 1) != 0;
  const bool single = (head >> 5 & 1) != 0;
  if (reserved || checksum) return false;
  if (!single && !compressed.read(1, window)) return false;
  if ((window >> 3) + 10 > 31) return false;  // as libzstd
  const int id_bytes = (head & 3) == 3 ? 4 : static_cast<int>(head & 3);
  if (!compressed.read(id_bytes, dictionary) || dictionary != 0) return false;
  const int form = static_cast<int>(head >> 6);
  const int size_bytes = form == 0 ? (single ? 1 : 0) : 1 << form;
  if (!compressed.read(smaller(size_bytes, 4), low) ||
      !compressed.read(size_bytes == 8 ? 4 : 0, high))
    return false;
  const std::uint32_t known = form == 1 ? low + 256 : low;
  if (size_bytes > 0 && (high != 0 || known != static_cast<std::uint32_t>(size))) return false;
  const std::uint64_t base = std::uint64_t{1} << (10 + (window >> 3));
  const std::uint64_t window_bytes = single ? known : base + base / 8 * (window & 7);
  block_limit = window_bytes < kMaxBlockBytes ? static_cast<int>(window_bytes) : kMaxBlockBytes;
  return true;
}

DPIF_HOST_DEVICE bool read_tables(Input& block, FrameState& frame) {
  std::uint32_t modes = 0;
  if (!block.read(1, modes) || (modes & 3) != 0) return false;
  DPIF_NO_UNROLL
  for (int code = 0; code < kNumCodes; ++code) {
    const auto mode = static_cast<TableMode>(modes >> (6 - 2 * code) & 3);
    if (!read_table(block, code, mode, frame.workspace, frame.had_tables)) return false;
  }
  frame.had_tables = true;
  return true;
}

// Literals of a block without sequences are its content. With sequences, raw literals are read in
// place and others are decoded to scratch first.
DPIF_HOST_DEVICE bool decode_block(Input block, FrameState& frame) {
  LiteralsSection section;
  int num = 0;
  if (!read_literals_section(block, section) || !read_num_sequences(block, num)) return false;
  const int limit = smaller(frame.size, frame.at + frame.block_limit);
  if (section.size > limit - frame.at) return false;
  const bool in_place = num > 0 && section.kind == LiteralsKind::kRaw;
  std::uint8_t* decoded = num == 0 ? frame.out + frame.at : frame.literals;
  if (!in_place && !decode_literals(section, frame.workspace, frame.huffman_log, decoded))
    return false;
  if (num == 0) {
    frame.at += section.size;
    return block.size == 0;
  }
  SequenceReader reader;
  if (!read_tables(block, frame) || !reader.start(block, frame.workspace)) return false;
  const std::uint8_t* literals = in_place ? section.compressed.at : frame.literals;
  BlockState state{literals, section.size, frame.out, limit, 0, frame.at};
  if (!execute_all(reader, num, frame.repeat_offsets, state, frame.workspace)) return false;
  const int rest = section.size - state.taken;
  if (rest > limit - state.at) return false;
  copy_bytes(frame.out + state.at, literals + state.taken, rest);
  lanes::sync();
  frame.at = state.at + rest;
  return true;
}

DPIF_HOST_DEVICE bool decode_blocks(Input& compressed, FrameState& frame) {
  enum Kind { kRaw, kRle, kCompressed };
  for (bool last = false; !last;) {
    std::uint32_t head = 0;
    Input block{};
    if (!compressed.read(3, head)) return false;
    last = (head & 1) != 0;
    const int kind = static_cast<int>(head >> 1 & 3), size = static_cast<int>(head >> 3);
    if (!compressed.split(kind == kRle ? 1 : size, block)) return false;
    if (kind == kCompressed) {
      if (size > frame.block_limit || !decode_block(block, frame)) return false;
      continue;
    }
    if (kind > kCompressed || size > frame.size - frame.at) return false;
    if (kind == kRaw)
      copy_bytes(frame.out + frame.at, block.at, size);
    else
      fill_bytes(frame.out + frame.at, block.at[0], size);
    lanes::sync();
    frame.at += size;
  }
  return true;
}

// Fills out[0, size) from a frame; `literals` is scratch of the same size. False: the frame is
// refused, and `out` holds anything.
DPIF_HOST_DEVICE bool decode_frame(Input compressed, std::uint8_t* out, int size,
                                   std::uint8_t* literals, Workspace& workspace) {
  if (compressed.size < 0 || compressed.size > kMaxBytes || size < 0 || size > kMaxBytes)
    return false;
  int block_limit = 0;
  if (!read_frame_header(compressed, size, block_limit)) return false;
  FrameState frame{out, size, literals, workspace, block_limit};
  return decode_blocks(compressed, frame) && compressed.size == 0 && frame.at == size;
}

}  // namespace dpiframe::zstd
