#pragma once

#include <string_view>

/// What must hold for any bytes that reach a parser; broken properties abort, so that both a fuzzer and a test see them.
namespace plait::fuzz {

/// Text: refused with a message, or printed and read again to the same thing.
void check_text(std::string_view bytes);

/// CSV, strict and lenient: refused with a message, or exported and read again to the same thing; what can be lowered is
/// exported too.
void check_csv(std::string_view bytes);

}  // namespace plait::fuzz
