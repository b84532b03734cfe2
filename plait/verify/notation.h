#pragma once

#include "plait/ir/program.h"

#include <string>

namespace plait {

/// An instruction as PyTorch's files write it where they can: "1F0", "1BW0.2" (slice 2), "0SEND_F3", "1RECV_F3",
/// "0WAIT_SEND_F3"; other transfers and the rest in words. Never fails, whatever the ids.
std::string describe(const Layout& layout, const Instr& instr);

/// "activation 0>1 of micro-batch 3", "stash of stage 1, micro-batch 3", "weight of group stage.1".
std::string describe(const Layout& layout, Value value);

}  // namespace plait
