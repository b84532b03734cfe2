#include "plait/cli/run/bench/samples.h"

#include <algorithm>

namespace plait::bench {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double spread(const std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
  return (*highest - *lowest) / median(values);
}

nlohmann::ordered_json figures_of(const std::vector<double>& values, Better better) {
  if (values.empty()) return nullptr;
  const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
  return {{"median", median(values)},
          {"best", better == Better::kHigher ? *highest : *lowest},
          {"worst", better == Better::kHigher ? *lowest : *highest},
          {"spread", spread(values)}};
}

}  // namespace plait::bench
