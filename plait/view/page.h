#pragma once

#include <string_view>

namespace plait {

/// The page's style and markup up to the data, and its script behind it.
extern const std::string_view kPageHead;
extern const std::string_view kPageScript;

}  // namespace plait
