// NVRTC, CUDA's run-time compiler: the source of a kernel to the machine code of one GPU.
//
// The library is opened when it is asked for, by its path or its name, so that nothing links it and
// no toolkit is needed to build this. A source may include the embedded headers by the names that
// they have below csrc; those of csrc/jit/include stand in for the headers of C++ and CUDA, of
// which they hold what kernels use. So no toolkit is needed to compile at load either, and parsing
// takes milliseconds, where CUDA's own headers for half types take half a second.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dpiframe {

// Name and text of each header that a source may include.
const std::vector<std::pair<std::string, std::string>>& embedded_headers();

class Nvrtc {
 public:
  // std::runtime_error: there is no such library. It stays open until the process ends.
  explicit Nvrtc(const std::string& path);

  const std::string& version() const { return version_; }  // such as 13.0

  // The cubin of a source called `name`, by options such as --gpu-architecture=sm_90a. Several
  // threads may compile at a time. std::runtime_error: with the compiler's log.
  std::string compile(const std::string& source, const std::string& name,
                      const std::vector<std::string>& options) const;

 private:
  struct Functions;

  const Functions* functions_;
  std::string version_;
};

}  // namespace dpiframe
