#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/run/engine/process_group.h"
#include "plait/run/engine/wait_state.h"

#include <cstddef>
#include <string>
#include <vector>

namespace plait {

/// "rank 2, position 14, op 1F3".
std::string place_in_row(const Program& program, RankId rank, std::size_t position);

/// What the loss of a process means for a step: which ranks went with it and where they were, and which rank of this
/// process had been waiting longest, where, for whom.
///
/// \param lost  ranks of the lost process; \param here  of this one
/// \returns     kTransport "engine.peer_gone" or kTimeout "engine.peer_silent"
Error explain_loss(const Program& program, const std::vector<WaitState>& waits, const LostProcess& process,
                   RankRange lost, RankRange here);

}  // namespace plait
