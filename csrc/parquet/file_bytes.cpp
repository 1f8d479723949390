#include "parquet/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/check.h"
#include "parquet/encodings/rle_bit_packed.h"

namespace dpiframe::parquet {

namespace {

int open_file(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    errno = EINVAL;
    return -1;
  }
  return open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

}  // namespace

OpenFile::OpenFile(std::string path) : path_(std::move(path)), descriptor_(open_file(path_)) {
  if (descriptor_ < 0) throw FileError(errno, path_);
  struct stat facts;
  const bool known = fstat(descriptor_, &facts) == 0;
  if (!known || S_ISDIR(facts.st_mode)) {
    const int error = known ? EISDIR : errno;
    close(descriptor_);
    throw FileError(error, path_);
  }
  size_ = facts.st_size;
  mtime_ns_ = facts.st_mtim.tv_sec * std::int64_t{1'000'000'000} + facts.st_mtim.tv_nsec;
}

OpenFile::~OpenFile() {
  close(descriptor_);
}

void OpenFile::read(std::int64_t position, std::span<std::uint8_t> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = pread(descriptor_, bytes.data(), bytes.size(), position);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(errno, path_);
    DPIF_CHECK(got > 0, "it became shorter while it was read");
    bytes = bytes.subspan(got);
    position += got;
  }
}

KnownBytes::KnownBytes(std::int64_t size, std::span<const std::uint8_t> memory,
                       std::vector<KnownRange> ranges)
    : memory_(memory), ranges_(std::move(ranges)) {
  size_ = size;
  const auto room = std::ssize(memory) - static_cast<std::int64_t>(kPagePadding);
  std::ranges::sort(ranges_, {}, &KnownRange::begin);
  std::int64_t end = 0;
  for (const KnownRange& range : ranges_) {
    DPIF_CHECK(range.begin >= end && range.bytes >= 0 && range.begin <= size &&
                   range.bytes <= size - range.begin,
               range.bytes, " bytes from ", range.begin, " of a file of ", size,
               " bytes, those before end at ", end);
    DPIF_CHECK(range.at >= 0 && range.at <= room && range.bytes <= room - range.at, range.bytes,
               " bytes from ", range.at, " and a padding of ", kPagePadding, " in memory of ",
               memory.size(), " bytes");
    end = range.begin + range.bytes;
  }
}

// The one that holds the byte at a position; null where none does.
const KnownRange* KnownBytes::range_of(std::int64_t position) const {
  const auto after = std::ranges::upper_bound(ranges_, position, {}, &KnownRange::begin);
  if (after == ranges_.begin()) return nullptr;
  const KnownRange& range = *std::prev(after);
  return position - range.begin < range.bytes ? &range : nullptr;
}

void KnownBytes::read(std::int64_t position, std::span<std::uint8_t> bytes) const {
  while (!bytes.empty()) {
    const KnownRange* range = range_of(position);
    DPIF_CHECK(range != nullptr, "the byte at ", position, " is not among those that were fetched");
    const std::int64_t skip = position - range->begin;
    const std::int64_t some = std::min(std::ssize(bytes), range->bytes - skip);
    const std::uint8_t* from = memory_.data() + range->at + skip;
    if (from != bytes.data()) std::memmove(bytes.data(), from, some);
    bytes = bytes.subspan(some);
    position += some;
  }
}

bool KnownBytes::knows(std::int64_t position, std::int64_t bytes) const {
  while (bytes > 0) {
    const KnownRange* range = range_of(position);
    if (range == nullptr) return false;
    const std::int64_t some = std::min(bytes, range->bytes - (position - range->begin));
    bytes -= some;
    position += some;
  }
  return true;
}

const std::uint8_t* KnownBytes::find(std::int64_t position, std::int64_t bytes) const {
  const KnownRange* range = range_of(position);
  if (range == nullptr || bytes > range->bytes - (position - range->begin)) return nullptr;
  return memory_.data() + range->at + (position - range->begin);
}

}  // namespace dpiframe::parquet
