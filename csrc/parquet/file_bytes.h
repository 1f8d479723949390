// Where the bytes of a file come from: its descriptor, or memory that holds some ranges of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace dpiframe::parquet {

class FileError : public std::system_error {
 public:
  FileError(int error, const std::string& path)
      : std::system_error(error, std::generic_category(), path), path(path) {}
  const std::string path;
};

class FileBytes {
 public:
  FileBytes() = default;
  virtual ~FileBytes() = default;
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  std::int64_t size() const { return size_; }
  std::int64_t mtime_ns() const { return mtime_ns_; }  // time of the last modification, or 0
  // Fills `bytes` from the position on. FileError; std::invalid_argument where the file ends
  // before, or where they are not known.
  virtual void read(std::int64_t position, std::span<std::uint8_t> bytes) const = 0;
  // Whether `read` knows these bytes, should the file be so long.
  virtual bool knows(std::int64_t position, std::int64_t bytes) const = 0;
  // Where these bytes lie in memory already, with kPagePadding bytes behind them that may be read;
  // null where they do not.
  virtual const std::uint8_t* find(std::int64_t position, std::int64_t bytes) const = 0;

 protected:
  std::int64_t size_ = 0;
  std::int64_t mtime_ns_ = 0;
};

// An open file. Read and not mapped: a mapped file that another process cuts off would end this
// one.
class OpenFile final : public FileBytes {
 public:
  explicit OpenFile(std::string path);  // FileError
  ~OpenFile() override;

  void read(std::int64_t position, std::span<std::uint8_t> bytes) const override;
  bool knows(std::int64_t, std::int64_t) const override { return true; }
  const std::uint8_t* find(std::int64_t, std::int64_t) const override { return nullptr; }

 private:
  std::string path_;
  int descriptor_;
};

// Bytes [begin, begin + bytes) of a file, which lie in memory from `at` on.
struct KnownRange {
  std::int64_t begin = 0;
  std::int64_t at = 0;
  std::int64_t bytes = 0;
};

// Ranges of a file of `size` bytes, fetched by the caller, who keeps the memory.
class KnownBytes final : public FileBytes {
 public:
  // std::invalid_argument where ranges lie outside of the file, share bytes of it, or leave fewer
  // than kPagePadding bytes of memory behind them.
  KnownBytes(std::int64_t size, std::span<const std::uint8_t> memory,
             std::vector<KnownRange> ranges);

  void read(std::int64_t position, std::span<std::uint8_t> bytes) const override;
  bool knows(std::int64_t position, std::int64_t bytes) const override;
  const std::uint8_t* find(std::int64_t position, std::int64_t bytes) const override;

 private:
  const KnownRange* range_of(std::int64_t position) const;

  std::span<const std::uint8_t> memory_;
  std::vector<KnownRange> ranges_;  // by `begin`
};

}  // namespace dpiframe::parquet
