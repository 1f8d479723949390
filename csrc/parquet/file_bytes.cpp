#include "parquet/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/check.h"

namespace dpiframe::parquet {

FileBytes::FileBytes(std::string path)
    : path_(std::move(path)), descriptor_(open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) throw FileError(errno, path_);
  struct stat facts;
  if (fstat(descriptor_, &facts) != 0) {
    const int error = errno;
    close(descriptor_);
    throw FileError(error, path_);
  }
  size_ = facts.st_size;
}

FileBytes::~FileBytes() {
  close(descriptor_);
}

void FileBytes::read(std::int64_t position, std::span<std::uint8_t> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = pread(descriptor_, bytes.data(), bytes.size(), position);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(errno, path_);
    DPIF_CHECK(got > 0, "the file ends where its footer tells of more");
    bytes = bytes.subspan(got);
    position += got;
  }
}

}  // namespace dpiframe::parquet
