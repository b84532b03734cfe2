#pragma once

#include "plait/ir/instr.h"

#include <array>
#include <string_view>
#include <utility>

/// Words of the text format, shared by its printer and its parser.
namespace plait::text_names {

inline constexpr std::array<std::pair<std::string_view, ValueKind>, 9> kValues = {{{"act", ValueKind::kActivation},
                                                                                   {"grad", ValueKind::kGradient},
                                                                                   {"stash", ValueKind::kStash},
                                                                                   {"wstash", ValueKind::kWeightStash},
                                                                                   {"kv", ValueKind::kKv},
                                                                                   {"kvgrad", ValueKind::kKvGrad},
                                                                                   {"weight", ValueKind::kWeight},
                                                                                   {"wgrad", ValueKind::kWeightGrad},
                                                                                   {"norm", ValueKind::kNorm}}};

inline constexpr std::array<CollectiveKind, 6> kCollectives = {
    CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
    CollectiveKind::kBroadcast, CollectiveKind::kReduce,        CollectiveKind::kAllToAll};

/// A group name that tokens may carry as it is.
constexpr bool is_plain_name(std::string_view name) {
  if (name.empty()) return false;
  for (const char c : name) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    if (!plain) return false;
  }
  return true;
}

}  // namespace plait::text_names
