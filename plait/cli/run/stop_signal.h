#pragma once

namespace plait::cli {

/// From here on the first SIGINT or SIGTERM asks the run to stop behind the step it is in; the second ends the process at
/// once, as if nothing caught it.
void catch_stop_signals();
/// The same for a process of a job: SIGUSR1, as its launcher hands on, and SIGTERM, as a job that ends gets, without words.
void catch_job_signals();
bool stop_requested();

}  // namespace plait::cli
