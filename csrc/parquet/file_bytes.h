// The bytes of a file, read where they are wanted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <system_error>

namespace dpiframe::parquet {

class FileError : public std::system_error {
 public:
  FileError(int error, const std::string& path)
      : std::system_error(error, std::generic_category(), path), path(path) {}
  const std::string path;
};

// Read and not mapped: a mapped file that another process cuts off would end this one.
class FileBytes {
 public:
  explicit FileBytes(std::string path);  // FileError
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  std::int64_t size() const { return size_; }
  std::int64_t mtime_ns() const { return mtime_ns_; }  // time of the last modification
  // Fills `bytes` from the position on. FileError; std::invalid_argument where the file ends
  // before.
  void read(std::int64_t position, std::span<std::uint8_t> bytes) const;

 private:
  std::string path_;
  int descriptor_;
  std::int64_t size_ = 0;
  std::int64_t mtime_ns_ = 0;
};

}  // namespace dpiframe::parquet
