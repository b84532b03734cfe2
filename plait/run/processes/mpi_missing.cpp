// A build without MPI.

#include "plait/run/processes/mpi_group.h"

namespace plait {

bool started_by_mpi() {
  return false;
}

Result<std::shared_ptr<JobProcesses>> join_job(const JoinOptions&) {
  return make_error(ErrorCode::kUnsupported, "mpi.missing",
                    "this plait was built without MPI; configure it with -DPLAIT_WITH_MPI=ON");
}

}  // namespace plait
