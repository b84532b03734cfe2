// A build without CUDA.

#include "plait/run/engine/rank_device.h"

namespace plait {

Result<> load_cuda() {
  return make_error(ErrorCode::kUnsupported, "device.missing",
                    "this plait was built without CUDA and computes on the CPU only; configure it with "
                    "-DPLAIT_WITH_CUDA=ON, or use --device cpu");
}

}  // namespace plait
