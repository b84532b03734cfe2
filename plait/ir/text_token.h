#pragma once

#include "plait/ir/program.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace plait {

/// What is wrong with a token: where in it, what was expected.
struct TokenError {
  std::size_t offset = 0;  ///< bytes from the token's start
  std::string expected;
};

/// Reads the tokens of the text format's rows. Knows the names that a layout gives to edges and groups.
class TokenReader {
 public:
  explicit TokenReader(const Layout& layout);

  /// Appends the token's instruction to the row; on a failure the row is unchanged and `error` is set.
  bool read(std::string_view token, Row& row, TokenError& error) const;

 private:
  class Scan;
  [[nodiscard]] std::optional<EdgeId> edge_between(std::int32_t producer, std::int32_t consumer) const;

  const Layout& layout_;
  bool chain_ = false;
  std::map<std::pair<std::int32_t, std::int32_t>, std::optional<EdgeId>> edges_;  ///< unset where ambiguous
  std::map<std::string, std::optional<GroupId>, std::less<>> groups_;             ///< unset where ambiguous
};

/// Reads a non-negative 32-bit number off the front of `text`.
std::optional<std::int32_t> take_number(std::string_view& text);

}  // namespace plait
