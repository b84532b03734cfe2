#pragma once

#include "plait/base/result.h"

#include <string>

namespace plait::cli {

/// The King James Bible as a text file in the user's cache, made once by the program `bible` of the Debian package
/// bible-kjv: one verse a line, its place before it.
///
/// \returns the file's path
/// \errors  kIo "data.corpus" if the program is missing or fails, with what to install or give instead
Result<std::string> default_corpus();

}  // namespace plait::cli
