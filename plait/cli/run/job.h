#pragma once

#include "plait/base/result.h"
#include "plait/cli/run/flags.h"
#include "plait/run/processes/mpi_group.h"

#include <filesystem>
#include <memory>

namespace plait::cli {

/// A run over several processes: who starts them, and how one of them behaves.
struct JobFlags {
  int processes = 0;  ///< 0: all ranks are threads of this one
  int restarts = 0;
  int min_ranks = 0;  ///< 0: a restart has all processes or fails
  void add_to(FlagSet& flags);
};

/// Is this the command that a person typed, which has to start the processes?
bool is_to_launch(const JobFlags& flags);

/// Runs this very command under mpirun, on so many processes, and again with --resume after a failure as often as
/// --restarts allows; with --min-ranks on fewer processes and ranks where a restart does not come to its first step, since
/// a machine is gone for instance. SIGINT and SIGTERM ask the processes to stop behind the step they are in; the second ends them.
///
/// \param argv  behind the name of the command
/// \param run   its run folder; empty if it has no fixed one
/// \returns     the job's exit code
/// \errors      kInvalidArgument "train.flags"; kIo "job.mpirun" if mpirun does not start
Result<int> launch_job(const JobFlags& flags, int argc, const char* const* argv, const std::filesystem::path& run);

/// The processes that mpirun started this one with; none without it.
/// \errors those of join_job; kInvalidArgument "train.flags" for another number than --processes says
Result<std::shared_ptr<JobProcesses>> join_if_started(const JobFlags& flags, double timeout_seconds);

/// Ends this process of a job because of an error, which it says and tells the others.
[[noreturn]] void fail_job(JobProcesses& job, const Error& error);

}  // namespace plait::cli
