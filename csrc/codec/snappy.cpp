#include "codec/snappy.h"

#include <cstring>

#include "common/check.h"

namespace dpiframe {
namespace {

// Copies that may write beyond their end do so by this much at most.
constexpr std::size_t kStep = 16;

class SnappyReader {
 public:
  SnappyReader(Bytes compressed, std::span<std::uint8_t> out) : in_(compressed), out_(out) {}

  void read() {
    DPIF_CHECK(varint() == out_.size(), "a snappy page does not decompress to its ", out_.size(),
               " bytes");
    while (at_ < in_.size()) {
      const std::uint8_t tag = in_[at_++];
      if ((tag & 3) == 0)
        literal(tag >> 2);
      else
        copy(tag);
    }
    check(filled_ == out_.size());
  }

 private:
  static void check(bool fits) { DPIF_CHECK(fits, "a snappy page is corrupt"); }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::size_t next = little_endian(1);
      value |= std::uint64_t{next & 0x7f} << shift;
      if (next < 0x80) return value;
    }
    check(false);
    return 0;
  }

  std::size_t little_endian(std::size_t bytes) {
    check(bytes <= in_.size() - at_);
    std::size_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) value |= std::size_t{in_[at_ + i]} << (8 * i);
    at_ += bytes;
    return value;
  }

  void literal(std::size_t code) {
    const std::size_t size = 1 + (code < 60 ? code : little_endian(code - 59));
    check(size <= in_.size() - at_ && size <= out_.size() - filled_);
    std::uint8_t* to = out_.data() + filled_;
    const std::uint8_t* from = in_.data() + at_;
    if (size <= kStep && kStep <= in_.size() - at_ && kStep <= out_.size() - filled_)
      std::memcpy(to, from, kStep);
    else
      std::memcpy(to, from, size);
    at_ += size;
    filled_ += size;
  }

  void copy(std::uint8_t tag) {
    std::size_t size = 1 + (tag >> 2), offset = 0;
    if ((tag & 3) == 1) {
      size = 4 + (tag >> 2 & 7);
      offset = static_cast<std::size_t>(tag >> 5) << 8 | little_endian(1);
    } else {
      offset = little_endian((tag & 3) == 2 ? 2 : 4);
    }
    check(offset > 0 && offset <= filled_ && size <= out_.size() - filled_);
    std::uint8_t* to = out_.data() + filled_;
    const std::uint8_t* from = to - offset;
    filled_ += size;
    if (offset >= kStep && out_.size() - filled_ >= kStep) {
      for (std::size_t i = 0; i < size; i += kStep) std::memcpy(to + i, from + i, kStep);
    } else {
      for (std::size_t i = 0; i < size; ++i) to[i] = from[i];  // what is copied may be just written
    }
  }

  Bytes in_;
  std::span<std::uint8_t> out_;
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
};

}  // namespace

void decompress_snappy(Bytes compressed, std::span<std::uint8_t> out) {
  SnappyReader(compressed, out).read();
}

}  // namespace dpiframe
