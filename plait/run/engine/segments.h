#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <span>
#include <vector>

namespace plait {

/// Arithmetic of collectives among threads that see each other's tensors. `tensors[i]` are member i's, in one common
/// order; undefined where a member takes no part in a tensor; else contiguous and of the same shape for all.
using MemberTensors = std::vector<std::span<const at::Tensor>>;

/// Segment of `me` := sum over the members in their order. Where some members take no part, the others cut the tensor
/// among themselves.
void sum_segment(const MemberTensors& tensors, std::size_t me);
/// All of `me`'s := sum over the members in their order.
void sum_whole(const MemberTensors& tensors, std::size_t me);
/// Every other member's segment is copied from it.
void copy_other_segments(const MemberTensors& tensors, std::size_t me);
void copy_whole(const MemberTensors& tensors, std::size_t from, std::size_t me);

}  // namespace plait
