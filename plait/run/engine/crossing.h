#pragma once

#include "plait/base/ids.h"
#include "plait/ir/program.h"
#include "plait/run/engine/engine.h"

namespace plait {

/// Bytes of one step, as its trace counts them, that went from one group of neighbouring ranks to another; the groups are
/// ranks g G .. g G + G - 1 with G = `ranks_per_group`.
///
///   messages     all bytes of those whose ends are in two groups
///   collectives  as rings in the order of the ranks, over every ring link between two groups: all_gather and reduce_scatter
///                (n - 1) / n of the whole, all_reduce twice that; broadcast and reduce the whole, but nothing over the link
///                that would close the ring at the root
///
/// The emulated links (delayed_transport.h) take the time of these rings.
Bytes bytes_between_groups(const Program& program, const StepResult& step, int ranks_per_group);

}  // namespace plait
