#pragma once

#include "plait/ir/program.h"
#include "plait/verify/trace.h"
#include "plait/verify/verify.h"

#include <vector>

namespace plait::verifying {

/// Runs the events of all ranks together under one transfer rule until nothing moves. Every rule is confluent (a rank that
/// can move can still move whatever the others do first), so one run decides for all timings. Reports the circles of
/// ranks that wait for each other, and sums that are not complete at their step.
void replay(const Space& space, const std::vector<Row>& rows, const Structure& structure, const Messages& messages,
            const Collectives& collectives, const Trace& trace, const VerifyOptions& options, Report& report);

}  // namespace plait::verifying
