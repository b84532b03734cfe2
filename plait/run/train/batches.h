#pragma once

#include "plait/run/data/sampler.h"
#include "plait/run/data/token_rows.h"
#include "plait/run/engine/engine.h"

#include <cstdint>
#include <span>
#include <vector>

namespace plait {

/// The rows as one micro-batch: tokens are all but the last id of a row, targets all but the first, with kIgnoredTarget
/// where the mask says so.
Microbatch make_microbatch(const TokenRows& rows, std::span<const std::int64_t> row_indices);

/// The micro-batches of the step that starts at sample `position`: M x B rows in the sampler's order.
std::vector<Microbatch> step_microbatches(const TokenRows& rows, Sampler& sampler, std::int64_t position,
                                          int num_microbatches, std::int64_t microbatch_size);

/// How many targets count.
std::int64_t count_valid(const std::vector<Microbatch>& microbatches);

/// The micro-batches of an evaluation over rows [begin, end), in order; what they hold beyond `end` is filled with rows whose
/// targets are all ignored.
std::vector<Microbatch> evaluation_group(const TokenRows& rows, std::int64_t begin, std::int64_t end,
                                         int num_microbatches, std::int64_t microbatch_size);

}  // namespace plait
