// Readers of bytes and bits of a zstd frame. They read nothing outside their `Input`.
#pragma once

#include "codec/words.cuh"

namespace dpiframe::zstd {

using namespace words;

// Position of the highest bit that is set; value > 0.
DPIF_HOST_DEVICE int highest_bit(std::uint32_t value) {
#ifdef __CUDA_ARCH__
  return 31 - __clz(static_cast<int>(value));
#else
  return 31 - __builtin_clz(value);
#endif
}

// The highest `count` bits, 0 to 31.
DPIF_HOST_DEVICE int first_bits(std::uint32_t bits, int count) {
  return static_cast<int>(bits >> 1 >> (31 - count));
}

// The bytes of a section that are not read yet.
struct Input {
  const std::uint8_t* at;
  int size;

  DPIF_HOST_DEVICE bool skip(int bytes) {
    if (bytes > size) return false;
    at += bytes;
    size -= bytes;
    return true;
  }

  // The next `bytes`, up to 4, little-endian, without consuming them; there must be as many.
  DPIF_HOST_DEVICE std::uint32_t peek(int bytes) const {
    std::uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= static_cast<std::uint32_t>(at[i]) << (8 * i);
    return value;
  }

  // Consumes the next `bytes`; false if there are fewer.
  DPIF_HOST_DEVICE bool read(int bytes, std::uint32_t& value) {
    if (bytes > size) return false;
    value = peek(bytes);
    return skip(bytes);
  }

  // Consumes the next `bytes` as a section of their own.
  DPIF_HOST_DEVICE bool split(int bytes, Input& first) {
    first = {at, bytes};
    return skip(bytes);
  }
};

// Reads bits forward, the lowest of a byte first; zeros follow the end.
class ForwardBits {
 public:
  DPIF_HOST_DEVICE explicit ForwardBits(const Input& input) : input_(input) {}

  // At most 16 of them.
  DPIF_HOST_DEVICE std::uint32_t read(int count) {
    const std::uint32_t value = peek(count);
    skip(count);
    return value;
  }
  DPIF_HOST_DEVICE std::uint32_t peek(int count) const {
    const int byte = bit_ >> 3;
    std::uint32_t value = 0;
    for (int i = 0; i < 3; ++i)
      if (byte + i < input_.size)
        value |= static_cast<std::uint32_t>(input_.at[byte + i]) << (8 * i);
    return value >> (bit_ & 7) & ((1u << count) - 1);
  }
  DPIF_HOST_DEVICE void skip(int count) { bit_ += count; }
  DPIF_HOST_DEVICE int bytes() const { return (bit_ + 7) >> 3; }

 private:
  Input input_;
  int bit_ = 0;
};

// Reads bits backward from the last set bit, which marks the end of a stream. Zeros precede the
// first byte, so that a stream that is too short shows only at its end: `left` is then negative.
//
// Words of 4 bytes are loaded two ahead of their use, since the latency of a load is that of
// several symbols, or of one sequence, which may take more than one word.
class BackwardBits {
 public:
  // False where the mark is missing.
  DPIF_HOST_DEVICE bool start(const Input& input) {
    if (input.size <= 0 || input.at[input.size - 1] == 0) return false;
    front_ = offset_in_word(input.at, 4);
    words_ = input.at - front_;
    const int end = front_ + input.size;
    const int top = (end - 1) >> 2;
    count_ = 8 * ((end - 1) & 3) + highest_bit(input.at[input.size - 1]);
    bits_ = static_cast<std::uint64_t>(partial_word(top, end)) << 32 << (32 - count_);
    first_word_ = partial_word(0, end);
    next_ = load(top - 1);
    loaded_ = top - 2;
    then_ = load(loaded_);
    return true;
  }

  // Afterwards at least 32 bits are ready.
  DPIF_HOST_DEVICE void refill() {
    if (count_ > 32) return;
    bits_ |= static_cast<std::uint64_t>(next_) << (32 - count_);
    count_ += 32;
    next_ = then_;
    then_ = load(--loaded_);
  }

  DPIF_HOST_DEVICE int ready() const { return count_; }

  // The next 32, and 32 that are `before` bits behind.
  DPIF_HOST_DEVICE std::uint32_t top() const { return static_cast<std::uint32_t>(bits_ >> 32); }
  DPIF_HOST_DEVICE std::uint32_t top(int before) const {
    return static_cast<std::uint32_t>(bits_ << before >> 32);
  }
  // The next `count`, 0 to 31, behind those `before`, of those that are ready.
  DPIF_HOST_DEVICE int peek(int before, int count) const {
    return first_bits(top() << before, count);
  }
  DPIF_HOST_DEVICE void skip(int count) {
    bits_ <<= count;
    count_ -= count;
  }
  DPIF_HOST_DEVICE int read(int count) {
    const int value = peek(0, count);
    skip(count);
    return value;
  }

  DPIF_HOST_DEVICE int left() const { return count_ + 32 * (loaded_ + 2) - 8 * front_; }

 private:
  // All words but the first and the last lie wholly in the stream.
  DPIF_HOST_DEVICE std::uint32_t load(int word) const {
    if (word > 0) return load_word<std::uint32_t>(words_ + 4 * static_cast<unsigned>(word));
    return word == 0 ? first_word_ : 0;
  }
  DPIF_HOST_DEVICE std::uint32_t partial_word(int word, int end) const {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * word + i;
      if (at >= front_ && at < end) value |= static_cast<std::uint32_t>(words_[at]) << (8 * i);
    }
    return value;
  }

  const std::uint8_t* words_;  // the aligned one that the first byte is in
  int front_;                  // the first byte in it
  std::uint32_t first_word_;   // with zeros for what is before
  int loaded_;                 // the word in then_
  int count_;                  // bits that are ready,
  std::uint64_t bits_;         // at its top
  std::uint32_t next_, then_;
};

}  // namespace dpiframe::zstd
