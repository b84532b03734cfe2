#include "registry_chain.h"
#include <gtest/gtest.h>

namespace plait {
namespace {

/// Equal times, B longer and W shorter than F, and three different ones; all divide by 1..4 chunks times 1..4 slices.
constexpr OpTimes kTimes[] = {{144, 144, 144, 0}, {1440, 1728, 1152, 0}, {144, 432, 288, 0}};

class RegistryGrid : public testing::TestWithParam<const ScheduleInfo*> {};

TEST_P(RegistryGrid, RunsOrIsRefused) {
  int ran = 0;
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 32; ++m)
      for (int v = 1; v <= 4; ++v)
        for (int k = 1; k <= 4; ++k)
          for (const Order order : {Order::kMegatron, Order::kTorch}) {
            if (order == Order::kTorch && GetParam()->name.find("interleaved-1f1b") == std::string_view::npos) continue;
            const OpTimes& times = kTimes[(p + m + v + k) % 3];
            if (run_chain(*GetParam(),
                          {.ranks = p, .microbatches = m, .chunks = v, .slices = k, .order = order, .times = times}) ==
                Outcome::kRan)
              ++ran;
            if (HasFailure()) return;
          }
  EXPECT_GT(ran, 0);
}

INSTANTIATE_TEST_SUITE_P(All, RegistryGrid, testing::ValuesIn(all_schedules()), [](const auto& system) {
  std::string name(system.param->name);
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
});

}  // namespace
}  // namespace plait
