#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"

namespace plait {

/// Puts an R right before every backward (B or BW; before the pair that it is part of) of a training schedule, on the
/// backward's rank, and notes `what` in the layout. For any schedule; one that holds an R already is refused.
///
/// What an R(s, m, q) means, to the verifier, the simulator and the executor alike:
///
///   F(s, m, q)  keeps in stash(s, m, q) only the stage's inputs (what came in over its edges; for embed the tokens),
///               and with kNoAttention each attention's output and log-sum-exp
///   R(s, m, q)  reads the stash and the weights and makes the stash again, as if F had kept everything
///   an F without an R keeps everything: R is a matter of one stage, micro-batch and slice
///
/// An R stands behind its F and before its B or BW, on the rank where both the stash and the backward are. One whose next op
/// is its own backward starts when that backward's gradients are here, as a checkpointed backward does; one that stands
/// earlier runs where it stands.
///
/// With kNoAttention a stage of attention alone gets none: there is nothing to make again.
///
/// \errors kInvalidSchedule "schedule.recompute" if an R stands in it already
Result<Schedule> add_recompute(Schedule schedule, Recompute what);

/// Activation elements in units of B T D that F(s, m, q) of whole sequences keeps for the backward, with or without an R
/// behind it, for a GPT with a 4 D MLP and as many key heads as heads, flash attention and no dropout:
///
///   all      norm 1 (its input), qkv 1, attn 3 (q, k, v), post 11 (attention output, norm in and out, 4 + 4 in the MLP)
///   kFull    what comes in over edges: hidden 1; q, k, v 3; attention output and residual 2; tokens 0
///   kNoAttention  also 1 for each attention's output
///
/// \source Zhang et al. 2025, arXiv:2507.00394 (their count of 16 and 4 per layer)
int kept_elements(const Layout& layout, StageId stage, Recompute what);

}  // namespace plait
