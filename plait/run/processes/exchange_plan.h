#pragma once

#include "plait/ir/instr.h"

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace plait {

/// What a member brings to a collective, without the elements.
struct MemberTensor {
  std::int64_t num_elements = -1;  ///< negative: it takes no part
  at::ScalarType type = at::kFloat;
  friend bool operator==(const MemberTensor&, const MemberTensor&) = default;
};
using MemberTensorList = std::vector<MemberTensor>;

/// A run of elements of one tensor: `worker` sums the sources' in the order of the members (or takes the only one's) and
/// the outs get the result. Members are places in the collective's list, worker a process.
struct ExchangeBlock {
  std::size_t tensor = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::vector<std::size_t> sources;
  std::vector<std::size_t> outs;
  int worker = 0;
  friend bool operator==(const ExchangeBlock&, const ExchangeBlock&) = default;
};

/// The work of a collective, the same list on every process. What each kind does: engine/segments.h; the sums have the
/// same operands in the same order as there.
///
///   all_reduce      a holder's process sums its segment and sends the result to all others
///   reduce          the root's process sums everything
///   reduce_scatter  a member's process sums its segment
///   all_gather      a member's segment goes to all others
///   broadcast       the root's goes to all others
///
/// \param processes  of the members
std::vector<ExchangeBlock> plan_exchange(CollectiveKind kind, const std::vector<MemberTensorList>& members,
                                         std::size_t root, const std::vector<int>& processes);

}  // namespace plait
