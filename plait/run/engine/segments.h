#pragma once

#include "plait/ir/instr.h"

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <span>
#include <vector>

namespace plait {

/// The tensors of a collective's members, who see each other's memory. `tensors[i]` are member i's, in one common order;
/// undefined where a member takes no part in a tensor; else contiguous and of the same shape for all.
using MemberTensors = std::vector<std::vector<at::Tensor>>;

/// Does share `i` of a collective's work, in place. The work is cut into one share per member; shares touch different
/// memory, so they may be done by any threads at once, each once. Sums are taken in the order of the members.
///
/// Segment i of a tensor of n elements over N members is [i n / N, (i + 1) n / N) of its flat elements:
///   all_reduce      segment i of everyone := its sum. Where some members take no part, the others cut the tensor
///                   among themselves
///   reduce          segment i of the root := its sum
///   reduce_scatter  segment i of member i := its sum
///   all_gather      segment i of everyone := member i's
///   broadcast       segment i of everyone := the root's
void do_share(CollectiveKind kind, const MemberTensors& tensors, std::size_t root, std::size_t i);

/// Each of `outs` := the sum of `summands`, in their order. Outputs may be summands.
void sum_in_order(std::span<const at::Tensor> outs, std::span<const at::Tensor> summands);

/// First flat element of segment `i` of `count`.
std::int64_t segment_begin(std::int64_t num_elements, std::size_t i, std::size_t count);

}  // namespace plait
