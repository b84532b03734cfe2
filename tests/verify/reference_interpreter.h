#pragma once

#include "plait/ir/program.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace plait::testing {

/// What a program computes, by plain execution of symbols (hashes of what they were made from) with buffered transfers.
/// Written from DESIGN section 1 alone, to hold the verifier against.
struct Meaning {
  enum class End : std::uint8_t { kFinished, kDeadlock, kCrash };
  End end = End::kFinished;
  std::string crash;                                       ///< which instruction, and why
  std::map<std::pair<int, int>, std::uint64_t> weights;    ///< (rank, group): the weight every home ends with
  std::map<std::vector<int>, std::uint64_t> losses;        ///< (stage, micro-batch, slice) of stages without successors
  std::vector<std::string> leaks;                          ///< what is left over
  [[nodiscard]] bool same_as(const Meaning& other) const;  ///< all but the words
};

Meaning interpret(const Program& program);

}  // namespace plait::testing
