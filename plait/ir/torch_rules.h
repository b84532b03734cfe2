#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/ir/torch_csv.h"

#include <cstddef>
#include <cstdint>

/// What PyTorch's format and runtime take for granted; shared by import, export and lowering.
namespace plait::torch_rules {

/// One home per stage, a chain, whole sequences, training, a stage on every rank.
/// \errors kUnsupported csv.cannot_express with the reason
Result<> check_layout(const Layout& layout);

/// Ops on the home of their stage, pairs of two ops, idle cells; nothing else. Demands check_layout.
/// \errors kUnsupported csv.cannot_express with the reason
Result<> check_schedule(const Schedule& schedule);

/// A forward or backward of a whole sequence, on the home of its stage. \errors as above, verify.out_of_range
Result<> check_op(const Layout& layout, std::size_t rank, std::size_t at, const Op& op);

/// One parameter group per stage. Demands check_layout. \errors as above
Result<> check_groups(const Layout& layout);

/// The layout of a compute_comms program: groups become sharded, and rank set r holds rank r alone.
void make_sharded(Layout& layout);
inline RankSetId own_set(std::size_t rank) {
  return RankSetId{static_cast<std::int32_t>(rank)};
}

/// Appends to each row what the format leaves implicit: the reductions if the version's files have none (`reductions`),
/// the all-reduce of the norm, the steps.
enum class Reductions : std::uint8_t { kInRows, kImplicit };
void append_implicit(Program& program, Reductions reductions);

Collective reduction(std::size_t rank, GroupId group);
WaitCollective reduction_wait(GroupId group);

}  // namespace plait::torch_rules
