// A build without NCCL.

#include "plait/run/processes/nccl_table.h"

namespace plait {

Result<> check_nccl_is_built_in() {
  return make_error(
      ErrorCode::kUnsupported, "nccl.missing",
      "this plait was built without NCCL, which several processes with GPUs need; configure it with "
      "-DPLAIT_WITH_CUDA=ON where nccl.h is (scripts/setup cuda), or leave --processes and mpirun out: one "
      "process uses all GPUs of a machine");
}

Result<std::shared_ptr<Nccl>> load_nccl() {
  PLAIT_TRY_VOID(check_nccl_is_built_in());
  return std::shared_ptr<Nccl>();
}

}  // namespace plait
