#pragma once

#include "plait/run/engine/transport.h"
#include "plait/run/processes/exchange_plan.h"
#include "plait/run/processes/nccl_table.h"

#include <cstddef>
#include <span>
#include <vector>

namespace plait {

MemberTensorList forms_of(std::span<const at::Tensor> tensors);

/// A member's share of a collective as calls of NCCL.
struct CollectiveCalls {
  std::vector<NcclCall> calls;
  std::vector<at::Tensor> scratch;  ///< zeros in place of what the member does not bring; used until the calls are done
};

/// What each kind does is what it does in one process (engine/segments.h), but for the order of sums, which is NCCL's.
/// Segments of equal length are one call, others one each. Who brings nothing adds zeros, and ignores what it gets: all members
/// of a communicator make the same calls.
///
/// \param place   of the member in the route
/// \param brings  per member; what its `tensors` are is among it
/// \errors        InternalError if the members' tensors differ, or have gaps
CollectiveCalls calls_of(const CollectiveRoute& route, std::size_t place, std::span<const at::Tensor> tensors,
                         const std::vector<MemberTensorList>& brings, DeviceQueue& queue, c10::Device device);

}  // namespace plait
