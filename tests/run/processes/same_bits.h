#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace plait::test {

/// Lets probe.cpp compare something over processes with the same over threads; at least so many cases.
void expect_all_same(int processes, const std::vector<std::string>& words, int at_least);

enum class Way : std::uint8_t { kSharedMemory, kMpi };

/// (processes, ranks, part of the list, way between processes); two ranks of the list in one process where there are more
/// ranks than processes.
class SameBits : public testing::TestWithParam<std::tuple<int, int, int, Way>> {};

constexpr int kParts = 7;  // odd, so that each part has all combinations of sizes and heads

}  // namespace plait::test
