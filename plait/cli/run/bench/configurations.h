#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace plait::bench {

/// A transformer of the Llama family with its data, under a name that reports and documents use.
struct Configuration {
  std::string_view name;
  int layers = 1;
  std::int64_t hidden = 64;
  std::int64_t heads = 1;
  std::int64_t ffn = 64;
  std::int64_t vocab = 64;
  std::int64_t tokens = 16;  ///< of a sequence
  int microbatches = 1;      ///< of one sequence each
  std::string_view dtype = "fp32";
};

/// By name.
std::span<const Configuration> configurations();
/// Null if there is none.
const Configuration* find_configuration(std::string_view name);
/// "A: 8 layers, 512 wide, ...", a line each.
std::string configuration_lines();

}  // namespace plait::bench
