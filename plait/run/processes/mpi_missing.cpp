// A build without MPI.

#include "plait/run/processes/mpi_group.h"

namespace plait {

Result<> check_mpi_is_built_in() {
  return make_error(ErrorCode::kUnsupported, "mpi.missing",
                    "this plait was built without MPI and runs all ranks as threads; configure it with "
                    "-DPLAIT_WITH_MPI=ON for several processes");
}

Result<std::shared_ptr<JobProcesses>> join_job(const JoinOptions&) {
  PLAIT_TRY_VOID(check_mpi_is_built_in());
  return std::shared_ptr<JobProcesses>();
}

}  // namespace plait
