#pragma once

#include "plait/base/result.h"
#include "plait/run/engine/blame.h"
#include "plait/run/engine/process_group.h"

namespace plait {

/// What the loss of a process means for a step: which ranks went with it and where they were, which rank of this process
/// had been waiting longest, where and for what, and which rank anywhere waits for what the lost ones would have done first.
///
/// \param lost  ranks of the lost process; \param here  of this one
/// \returns     kTransport "engine.peer_gone" or kTimeout "engine.peer_silent"
Error explain_loss(StepView view, const LostProcess& process, RankRange lost, RankRange here);

}  // namespace plait
