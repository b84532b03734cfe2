#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/ir/torch_csv.h"

#include <optional>
#include <string_view>
#include <variant>
#include <vector>

namespace plait {

/// How many distinct stages ahead a rank gathers weights.
struct UnshardLookahead {
  struct Full {
    friend bool operator==(const Full&, const Full&) = default;
  };  ///< max_active_stages
  struct Auto {
    friend bool operator==(const Auto&, const Auto&) = default;
  };                                                    ///< min(rank + 2, max_active_stages)
  std::variant<Full, Auto, std::vector<int>> distance;  ///< or one number per rank
  friend bool operator==(const UnshardLookahead&, const UnshardLookahead&) = default;
};

/// "full", "auto" or numbers such as "2,3,3,3". \errors kInvalidArgument
Result<UnshardLookahead> parse_unshard_lookahead(std::string_view text);

/// Options of PyTorch's lowering, with its defaults.
struct TorchLoweringOptions {
  bool defer_recv = false;                   ///< post each receive just before the op that needs it (defer_pp_recv)
  std::optional<int> max_outstanding_sends;  ///< most sends of a rank that are not waited for yet
  UnshardLookahead unshard_lookahead;
  int max_active_stages = 3;            ///< gathered stages that a rank keeps
  bool defer_reduce_grad_wait = false;  ///< wait for a reduction just before the rank's next one
  TorchVersion version;                 ///< before 2.10: without REDUCE_GRAD
};

/// Lowers a schedule as torch.distributed.pipelining 2.15 does, so that export_torch_csv(result) has the same bytes:
/// UNSHARD and RESHARD; REDUCE_GRAD and its wait; SEND and RECV; WAIT_SEND; then, if asked for, deferred receives and the
/// budget of outstanding sends. Idle cells are dropped, groups become sharded, norm and steps are appended.
///
/// \errors kUnsupported csv.cannot_express if the format cannot hold the schedule; kInvalidSchedule as lower();
///         kInvalidArgument lowering.* for an option that PyTorch refuses, or a budget that cannot be kept
Result<Program> lower_as_torch(const Schedule& schedule, const TorchLoweringOptions& options = {});

/// Merges adjacent B and W of the same stage and micro-batch into BW; idle cells are dropped, as PyTorch's _merge_bw does.
Schedule merge_backwards(const Schedule& schedule);

}  // namespace plait
