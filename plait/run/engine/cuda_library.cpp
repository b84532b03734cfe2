#include "plait/run/engine/rank_device.h"

#include <dlfcn.h>

#include <string>

namespace plait {

/// On demand and not at the start: half a GB that a run on the CPU has no use for, and libraries that need not be there.
/// It registers its kernels, streams and allocator with libc10 as it is loaded.
Result<> load_cuda() {
  static const std::string kProblem = [] {
    if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return std::string();
    const char* words = ::dlerror();
    return std::string(words == nullptr ? "libtorch_cuda.so does not load" : words);
  }();
  if (kProblem.empty()) return {};
  return make_error(ErrorCode::kUnsupported, "device.missing",
                    "CUDA does not load: {}; scripts/setup cuda fetches what is missing, or use --device cpu",
                    kProblem);
}

}  // namespace plait
