#pragma once

#include "plait/ir/program.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace plait {

/// Instructions by kind ("send", "all_reduce", "op", ...) and by the kind of value they carry ("activation", ...); ops by
/// their kind ("F", "BW", ...), turns and pairs under "none".
using Counts = std::map<std::string, std::map<std::string, std::int64_t>>;

struct ProgramStats {
  Counts total;
  std::vector<Counts> ranks;
  friend bool operator==(const ProgramStats&, const ProgramStats&) = default;
};

/// A SEND/RECV pair counts once, as a send of the sending rank; a collective once in the total and once
/// per member in `ranks` (DESIGN section 7).
ProgramStats count_instructions(const Program& program);

}  // namespace plait
