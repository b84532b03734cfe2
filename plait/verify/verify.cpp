#include "plait/verify/verify.h"

#include "plait/ir/lower.h"
#include "plait/verify/collectives.h"
#include "plait/verify/messages.h"
#include "plait/verify/replay.h"
#include "plait/verify/report.h"
#include "plait/verify/structure.h"
#include "plait/verify/trace.h"

#include <algorithm>
#include <utility>

namespace plait {
namespace {

using namespace verifying;  // NOLINT(google-build-using-namespace): this file is the front of that namespace

/// The rows without the instructions that name what is not there; positions stay.
std::vector<Row> without_unusable(const std::vector<Row>& rows, const std::vector<Place>& unusable) {
  std::vector<Row> usable = rows;
  for (const Place& place : unusable)
    usable[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.position)] = Idle{};
  return usable;
}

}  // namespace

std::vector<Finding> verify(const Program& program, const VerifyOptions& options) {
  Report report(program.layout, program.rows, std::max(options.most_listed, 1));
  if (!check_layout(program.layout, program.rows, report)) return report.take();
  const Space space(program.layout);
  const Structure structure = check_structure(space, program.rows, report);
  std::vector<Row> usable;
  if (!structure.unusable.empty()) usable = without_unusable(program.rows, structure.unusable);
  const std::vector<Row>& rows = structure.unusable.empty() ? program.rows : usable;
  const Messages messages = match_messages(space, rows, structure, report);
  const Collectives collectives = match_collectives(space, rows, report);
  const Trace trace = trace_rows(space, rows, structure, messages, collectives, options.activation_limit, report);
  replay(space, rows, structure, messages, collectives, trace, options, report);
  return report.take();
}

std::vector<Finding> verify(const Schedule& schedule, const VerifyOptions& options) {
  // What is wrong with the ops by themselves is worded better before transfers stand between them.
  Report report(schedule.layout, schedule.rows, std::max(options.most_listed, 1));
  if (!check_layout(schedule.layout, schedule.rows, report)) return report.take();
  check_structure(Space(schedule.layout), schedule.rows, report);
  if (!report.empty()) return report.take();
  auto program = lower(schedule);
  if (!program) return {Finding{.rule = program.error().rule, .message = program.error().message}};
  return verify(*program, options);
}

Result<VerifiedProgram> prove(Program program) {
  const auto findings = verify(program);
  if (!findings.empty())
    return make_error(ErrorCode::kInvalidSchedule, findings.front().rule, "{} ({} findings in all)",
                      findings.front().message, findings.size());
  return VerifiedProgram(std::move(program));
}

}  // namespace plait
