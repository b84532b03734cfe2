#pragma once

#include "plait/ir/instr.h"
#include "plait/ir/value.h"

#include <string>

namespace plait {

/// Names for messages: "1F3", "send of the activation of edge 0, micro-batch 3 to rank 1".
std::string describe(const Op& op);
std::string describe(const Value& value);
std::string describe(const Instr& instr);

}  // namespace plait
