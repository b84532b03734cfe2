#include "plait/base/check.h"

namespace plait {

void fail_check(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(fmt::format("{}:{}: internal error: {} does not hold{}{}", file, line, condition,
                                  message.empty() ? "" : ": ", message));
}

}  // namespace plait
