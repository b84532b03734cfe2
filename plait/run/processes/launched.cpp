#include "plait/run/processes/mpi_group.h"

#include <cstdlib>

namespace plait {

bool started_by_mpi() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMIX_RANK") != nullptr;
}

}  // namespace plait
