#pragma once

#include <nlohmann/json.hpp>

#include <vector>

namespace plait::bench {

/// Median of repetitions; of an even number the mean of the two in the middle. Zero for none.
double median(std::vector<double> values);

/// {"median", "best", "worst", "spread"}: best is the highest or the lowest, spread is (highest - lowest) / median.
enum class Better { kHigher, kLower };
nlohmann::ordered_json figures_of(const std::vector<double>& values, Better better);
/// (highest - lowest) / median
double spread(const std::vector<double>& values);

}  // namespace plait::bench
