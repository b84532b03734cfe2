#include "plait/verify/verify.h"

#include "plait/ir/lower.h"

namespace plait {

std::vector<Finding> verify(const Program&, const VerifyOptions&) { return {}; }

std::vector<Finding> verify(const Schedule& schedule, const VerifyOptions& options) {
  auto program = lower(schedule);
  if (!program) return {Finding{.rule = program.error().rule, .message = program.error().message}};
  return verify(*program, options);
}

Result<VerifiedProgram> prove(Program program) {
  const auto findings = verify(program);
  if (!findings.empty())
    return make_error(ErrorCode::kInvalidSchedule, findings.front().rule, "{} ({} findings in all)", findings.front().message, findings.size());
  return VerifiedProgram(std::move(program));
}

}  // namespace plait
