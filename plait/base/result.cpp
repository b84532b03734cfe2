#include "plait/base/result.h"

namespace plait {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kInvalidSchedule: return "invalid schedule";
    case ErrorCode::kInfeasible: return "infeasible";
    case ErrorCode::kTransport: return "transport failure";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kIo: return "input/output";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kInterrupted: return "interrupted";
  }
  return "unknown";
}

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kInfeasible:
    case ErrorCode::kUnsupported: return 2;
    case ErrorCode::kInvalidSchedule: return 1;
    case ErrorCode::kTransport:
    case ErrorCode::kTimeout:
    case ErrorCode::kIo:
    case ErrorCode::kInterrupted: return 3;
  }
  return 3;
}

}  // namespace plait
