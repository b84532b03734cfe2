#pragma once

#include "plait/ir/program.h"

#include <vector>

namespace plait {

/// PyTorch's fixed ZB-V order: stages r and 2p-1-r on rank r, peak memory p, no bubble for equal times.
std::vector<Row> zb_v_order(int num_ranks, int num_microbatches);

}  // namespace plait
