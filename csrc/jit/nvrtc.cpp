#include "jit/nvrtc.h"

#include <dlfcn.h>

#include <memory>
#include <stdexcept>
#include <type_traits>

#include "common/check.h"

namespace dpiframe {

// The part of nvrtc.h that is called; its ABI is the same in CUDA 12 and 13.
struct Nvrtc::Functions {
  using Program = void*;

  int (*version)(int*, int*);
  const char* (*error)(int);
  int (*create)(Program*, const char* source, const char* name, int num_headers,
                const char* const* headers, const char* const* names);
  int (*compile)(Program, int num_options, const char* const* options);
  int (*cubin_size)(Program, std::size_t*);
  int (*cubin)(Program, char*);
  int (*log_size)(Program, std::size_t*);
  int (*log)(Program, char*);
  int (*destroy)(Program*);

  void check(int status, const std::string& name) const {
    if (status != 0)
      throw std::runtime_error(join_message("NVRTC failed to compile ", name, ": ", error(status)));
  }
};

Nvrtc::Nvrtc(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(join_message("no NVRTC: ", dlerror()));
  auto functions = std::make_unique<Functions>();
  const auto find = [&](auto& function, const char* name) {
    void* found = dlsym(library, name);
    if (found == nullptr)
      throw std::runtime_error(join_message(path, " is no NVRTC: it has no ", name));
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  find(functions->version, "nvrtcVersion");
  find(functions->error, "nvrtcGetErrorString");
  find(functions->create, "nvrtcCreateProgram");
  find(functions->compile, "nvrtcCompileProgram");
  find(functions->cubin_size, "nvrtcGetCUBINSize");
  find(functions->cubin, "nvrtcGetCUBIN");
  find(functions->log_size, "nvrtcGetProgramLogSize");
  find(functions->log, "nvrtcGetProgramLog");
  find(functions->destroy, "nvrtcDestroyProgram");
  int major = 0;
  int minor = 0;
  functions->check(functions->version(&major, &minor), "nothing");
  version_ = join_message(major, ".", minor);
  functions_ = functions.release();  // as long as the library: until the process ends
}

std::string Nvrtc::compile(const std::string& source, const std::string& name,
                           const std::vector<std::string>& options) const {
  const Functions& nvrtc = *functions_;
  std::vector<const char*> texts;
  std::vector<const char*> names;
  for (const auto& [header, text] : embedded_headers()) {
    names.push_back(header.c_str());
    texts.push_back(text.c_str());
  }
  std::vector<const char*> arguments;
  for (const std::string& option : options) arguments.push_back(option.c_str());

  Functions::Program program = nullptr;
  nvrtc.check(nvrtc.create(&program, source.c_str(), name.c_str(), static_cast<int>(texts.size()),
                           texts.data(), names.data()),
              name);
  const auto destroy = [&nvrtc](Functions::Program* made) { nvrtc.destroy(made); };
  const std::unique_ptr<Functions::Program, decltype(destroy)> owner(&program, destroy);
  const int status = nvrtc.compile(program, static_cast<int>(arguments.size()), arguments.data());
  std::size_t size = 0;
  if (status != 0) {
    nvrtc.check(nvrtc.log_size(program, &size), name);
    std::string log(size, '\0');
    nvrtc.check(nvrtc.log(program, log.data()), name);
    throw std::runtime_error(join_message("NVRTC failed to compile ", name, ": ",
                                          nvrtc.error(status), "\n", log.c_str()));
  }
  nvrtc.check(nvrtc.cubin_size(program, &size), name);
  std::string cubin(size, '\0');
  nvrtc.check(nvrtc.cubin(program, cubin.data()), name);
  return cubin;
}

}  // namespace dpiframe
