// Frames of zstd, pages of snappy, LZ4 and gzip: what our zstd takes libzstd takes, too, and both
// give the same bytes. What we refuse libzstd may take: it lets a stream of literals end anywhere.
//
// A case is the size of the content in 4 bytes, one of "zslg", then the frame; tests/helpers/
// fuzz_frames.py has the same form and compares with the codecs that Python and pyarrow bring.
#include <dlfcn.h>

#include <cstring>
#include <string>
#include <vector>

#include "codec/decompress.h"
#include "codec/gzip/gunzip.h"
#include "codec/lz/decompress_cpu.h"
#include "codec/zstd/decompress_cpu.h"
#include "fuzz_case.h"

using namespace dpiframe;
using fuzz::Record;

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t room);

namespace {

constexpr std::size_t kHead = 5, kMostBytes = 256 << 10;

void compare_zstd(Bytes frame, std::size_t size) {
  std::vector<std::uint8_t> ours(size), theirs(size);
  const bool we_refuse = fuzz::refusal([&] { unzstd(frame, ours); }).has_value();
  // That of the system, where there is one.
  const bool they_refuse =
      fuzz::refusal([&] { decompress(Codec::kZstd, frame, theirs); }).has_value();
  if (we_refuse)
    return Record::get().count(they_refuse ? "zstd: refused" : "zstd: only they take it");
  fuzz::require(!they_refuse, "libzstd refuses what we take");
  fuzz::require(ours == theirs, "libzstd gives other bytes");
  Record::get().count("zstd: taken");
}

template <class Decode>
void read(const char* name, Bytes page, std::size_t size, Decode decode) {
  std::vector<std::uint8_t> out(size);
  const auto refused = fuzz::refusal([&] { decode(page, out); });
  Record::get().count(std::string(name) + (refused.has_value() ? ": refused" : ": taken"));
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  void* library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
  void* version = library != nullptr ? dlsym(library, "ZSTD_versionString") : nullptr;
  Record::get().fact("libzstd",
                     version == nullptr ? "none" : reinterpret_cast<const char* (*)()>(version)());
  return 0;
}

// Most changes are made to the frame: others seldom leave the size that it has.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t room, unsigned int seed) {
  if (size <= kHead || seed % 16 == 0) return LLVMFuzzerMutate(data, size, room);
  return kHead + LLVMFuzzerMutate(data + kHead, size - kHead, room - kHead);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < kHead) return 0;
  std::uint32_t size;
  std::memcpy(&size, data, sizeof(size));
  if (size > kMostBytes) return 0;
  const fuzz::Case fuzz_case(static_cast<std::int64_t>(bytes));
  const std::vector<std::uint8_t> exact(data + kHead, data + bytes);  // so that ASan sees its ends
  switch (data[4]) {
    case 's':
      read("snappy", exact, size, unsnappy);
      break;
    case 'l':
      read("lz4", exact, size, unlz4);
      break;
    case 'g':
      read("gzip", exact, size, gunzip);
      break;
    default:
      compare_zstd(exact, size);
  }
  return 0;
}
