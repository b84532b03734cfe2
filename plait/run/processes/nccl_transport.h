#pragma once

#include "plait/run/engine/process_group.h"
#include "plait/run/engine/transport.h"
#include "plait/run/processes/nccl_table.h"

#include <memory>

namespace plait {

/// What ranks of different processes give each other goes from GPU to GPU; what must be known of it, and all that stays in a
/// process, goes by `inner`. A call of all processes.
///
/// A message is given to the queue of its line (nccl_plan.h) behind what the sender's stream was given before; its head goes by
/// `inner`, and tells the receiver's host that it may give its GPU the other half. A member that enters a collective does so
/// on its line at once; that all have entered, `inner` says. So waits, time-outs and who is waited for are those of
/// `inner`, and no host waits for a GPU.
///
/// In the first step of a program all goes by way of the hosts. Then every rank knows what the members bring to each
/// collective, and nothing that a host has to wait for (a kernel that is loaded, memory that is asked for) is done for
/// the first time while calls of NCCL wait on the GPU.
///
/// Ranks that share a GPU cannot meet in NCCL: between them all steps are like the first.
///
/// \param inner  its Routes::devices say where the ranks of this process compute
/// \errors kTransport, kTimeout "nccl.open"; kUnsupported "nccl.queues"; those of the process group
Result<std::unique_ptr<Transport>> open_nccl(ProcessGroup& processes, std::shared_ptr<Nccl> nccl,
                                             std::unique_ptr<Transport> inner, RankRange here, Clock::duration timeout);

}  // namespace plait
