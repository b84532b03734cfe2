#include "plait/cli/run/bench/configurations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace plait::bench {

std::span<const Configuration> configurations() {
  static constexpr std::array kAll = {
      Configuration{"A", 8, 512, 8, 1408, 8192, 512, 8, "fp32"},
      Configuration{"B", 8, 512, 8, 1408, 8192, 512, 8, "bf16"},
      Configuration{"C", 4, 1024, 16, 2816, 32000, 1024, 4, "fp32"},
      Configuration{"D", 4, 512, 8, 1408, 8192, 4096, 2, "fp32"},
      // Hardly any arithmetic: what is left is the engine's own time.
      Configuration{"tiny", 4, 64, 2, 64, 64, 16, 64, "fp32"},
  };
  return kAll;
}

const Configuration* find_configuration(std::string_view name) {
  const auto all = configurations();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Configuration& c) { return c.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::string configuration_lines() {
  std::string lines;
  for (const Configuration& c : configurations())
    lines += fmt::format("  {:<5} {} layers, {} wide, {} heads, MLP {}, vocabulary {}; {} x {} tokens, {}\n", c.name,
                         c.layers, c.hidden, c.heads, c.ffn, c.vocab, c.microbatches, c.tokens, c.dtype);
  return lines;
}

}  // namespace plait::bench
