#pragma once

#include "plait/run/engine/transport.h"
#include "plait/run/processes/mpi_group.h"

#include "fake_nccl.h"

#include <memory>
#include <string>

/// What the files of the probe share.
namespace plait::testing {

/// Prints a case, on process 0. \param difference  empty: there is none
void say(const ProcessGroup& job, const std::string& name, const std::string& difference);

/// How the processes speak, by the words in front.
struct ProbeWay {
  bool over_nccl = false;
  FakeNcclFaults faults;
};
ProbeWay& probe_way();

/// Puts NCCL in front of a transport, if that is the way.
Result<std::unique_ptr<Transport>> wrap(std::unique_ptr<Transport> inner, ProcessGroup* processes);

Result<> check_collectives(const std::shared_ptr<JobProcesses>& job);
Result<> check_messages(const std::shared_ptr<JobProcesses>& job);
Result<> check_links(const std::shared_ptr<JobProcesses>& job);

}  // namespace plait::testing
