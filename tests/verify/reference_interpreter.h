#pragma once

#include "plait/ir/program.h"

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace plait::testing {

/// What a program computes, by plain execution of symbols (hashes of what they were made from) with buffered transfers.
/// Written from DESIGN section 1 alone, to hold the verifier against.
struct Meaning {
  enum class End : std::uint8_t { kFinished, kDeadlock, kCrash };
  End end = End::kFinished;
  std::map<std::pair<int, GroupId>, std::uint64_t> weights;                    ///< what every home ends with
  std::map<std::tuple<StageId, MicrobatchId, SliceId>, std::uint64_t> losses;  ///< of stages without successors
  std::vector<std::string> leaks;                                              ///< what is left over
  std::string crash;                                                           ///< where and why
  friend bool operator==(const Meaning&, const Meaning&) = default;
};

Meaning interpret(const Program& program);

}  // namespace plait::testing
