#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace plait {

/// Our own mistake, never the user's: thrown by PLAIT_CHECK.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_check(const char* file, int line, const char* condition, const std::string& message);

}  // namespace plait

/// Always on. For states that no input can reach; a user's mistake is an Error value instead.
///     PLAIT_CHECK(row < rows.size(), "row {} of {}", row, rows.size());
#define PLAIT_CHECK(condition, ...)                                                       \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::plait::fail_check(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
