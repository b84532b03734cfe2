#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/sim/engine_memory/module.h"
#include "plait/sim/model_shape.h"
#include "plait/sim/rank_memory.h"

#include <vector>

namespace plait {

/// What every rank of Plait's own engine holds at each instruction of a steady training step (AdamW), byte for byte as its
/// allocator counts: the rows are run with sizes in place of tensors. A rank's bytes depend on its row alone, not on time:
/// a message belongs to nobody from its Send until its reader takes it.
///
/// Two things do depend on time. What a rank puts into a reduction whose sum it does not keep is taken to stand until the
/// rank waits for it, which is at most too much. A copy of weights that a rank broadcasts and frees is taken to be gone,
/// which is too little by that copy while another member of the group has not taken it over.
///
/// Not covered: chunks of the MLP and of the loss that a run asks for; SGD.
///
/// \errors kUnsupported "engine.branches"; those of check_shape
/// \cost   about 100 ns for each tensor that an op makes
Result<std::vector<RankMemory>> engine_memory(const Program& program, const ModelShape& shape,
                                              const ledger::KernelScratch& scratch = {});

}  // namespace plait
