#pragma once

#include "plait/base/check.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace plait {

enum class ErrorCode {
  kInvalidArgument,  ///< a flag, a combination of flags or a value that is refused
  kInvalidSchedule,  ///< a schedule or program that is malformed or fails the verifier
  kInfeasible,       ///< no answer exists within the given limits
  kTransport,        ///< a transfer failed; the process group is dead
  kTimeout,          ///< a peer was silent for too long
  kIo,               ///< a file could not be read or written, or its contents are damaged
  kUnsupported,      ///< understood, but not something Plait does
  kInterrupted,      ///< the user asked to stop
};

/// A mistake of the user or of the world around us, as a value.
/// `message` says where, what, expected against found, what to change. `rule` is a stable id such as
/// "verify.backward_before_forward".
struct Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string rule;
  std::string message;
  friend bool operator==(const Error&, const Error&) = default;
};

std::string_view to_string(ErrorCode code);

/// Exit code of a command that ends with this error (DESIGN section 7): 2 refused flags, 1 a judged thing is wrong,
/// 3 unreadable files and failures at run time.
int exit_code(ErrorCode code);

/// Builds an Error with a formatted message.
template <class... Args>
Error make_error(ErrorCode code, std::string_view rule, fmt::format_string<Args...> format, Args&&... args) {
  return Error{.code = code, .rule = std::string(rule), .message = fmt::format(format, std::forward<Args>(args)...)};
}

/// A value or an Error.
///
///     Result<int> parse(std::string_view text);
///     auto n = parse("12");
///     if (!n) return n.error();
///     use(*n);
template <class T = void>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  T& value() & {
    require();
    return std::get<0>(state_);
  }
  const T& value() const& {
    require();
    return std::get<0>(state_);
  }
  T&& value() && {
    require();
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  [[nodiscard]] const Error& error() const { return std::get<1>(state_); }

 private:
  void require() const {
    if (!has_value()) fail_check("result.h", 0, "has_value()", std::get<1>(state_).message);
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] bool has_value() const { return ok_; }
  explicit operator bool() const { return ok_; }
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  Error error_;
  bool ok_ = true;
};

}  // namespace plait

// `declaration` cannot stand in brackets.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PLAIT_CONCAT_INNER(a, b) a##b
#define PLAIT_CONCAT(a, b) PLAIT_CONCAT_INNER(a, b)
/// In .cpp files only. `PLAIT_TRY(auto x, f());` declares x from the value of f(), or returns its error.
#define PLAIT_TRY(declaration, expression)                \
  auto PLAIT_CONCAT(plait_try_, __LINE__) = (expression); \
  if (!PLAIT_CONCAT(plait_try_, __LINE__)) [[unlikely]]   \
    return PLAIT_CONCAT(plait_try_, __LINE__).error();    \
  declaration = *std::move(PLAIT_CONCAT(plait_try_, __LINE__))
/// The same for a Result<void>.
#define PLAIT_TRY_VOID(expression)                                                                \
  do {                                                                                            \
    if (auto plait_try_result = (expression); !plait_try_result) return plait_try_result.error(); \
  } while (false)
// NOLINTEND(bugprone-macro-parentheses)
