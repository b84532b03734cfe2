#pragma once

#include "plait/base/result.h"
#include "plait/run/engine/process_group.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace plait {

/// Was this process started by mpirun, or by a launcher that speaks the same language (srun --mpi=pmix)?
bool started_by_mpi();

/// Can this build join such a job?
/// \errors kUnsupported "mpi.missing"
Result<> check_mpi_is_built_in();

/// The processes that mpirun started.
class JobProcesses : public ProcessGroup {
 public:
  /// Ends a job that went well, together with all others: MPI is finalized. Nothing of the group works afterwards.
  /// \errors those of a failure on the way
  virtual Result<> leave() = 0;
  /// Behind a failure: gives the others time to say theirs. Then end the process by _exit: MPI would wait for the dead, or
  /// end the others.
  virtual void leave_failed() = 0;
  /// Runs something that calls MPI itself, while nothing else here does.
  virtual void with_mpi(const std::function<void()>& calls) = 0;
  /// `say` is called at once when another process fails or is lost, on a thread of the group. `end` is called if this
  /// process lives half a second after a failure and has not called leave_failed: something hangs, or computes for long. It
  /// should end the process.
  virtual void on_failure(std::function<void(const Error&)> say, std::function<void(const Error&)> end) = 0;
};

enum class OnOneMachine : std::uint8_t {
  kSharedMemory,  ///< from memory to memory, where the system allows it (node_lane.h)
  kMessages,      ///< over MPI, as between machines
};

struct JoinOptions {
  double timeout_seconds = 60;  ///< a process silent for longer is lost
  OnOneMachine on_one_machine = OnOneMachine::kSharedMemory;
};

/// Starts MPI and the signs of life. Once per process.
/// \errors kTransport "mpi.*", "watch.*"; kUnsupported "mpi.missing" in a build without MPI
Result<std::shared_ptr<JobProcesses>> join_job(const JoinOptions& options);

}  // namespace plait
