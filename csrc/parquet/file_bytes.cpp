#include "parquet/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/check.h"

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

FileBytes::FileBytes(std::string path) : path_(std::move(path)), descriptor_(open_file(path_)) {
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

FileBytes::~FileBytes() {
  close(descriptor_);
}

void FileBytes::read(std::int64_t position, std::span<std::uint8_t> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = pread(descriptor_, bytes.data(), bytes.size(), position);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(errno, path_);
    DPIF_CHECK(got > 0, "it became shorter while it was read");
    bytes = bytes.subspan(got);
    position += got;
  }
}

}  // namespace dpiframe::parquet
