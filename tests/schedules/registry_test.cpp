#include "plait/schedules/common.h"

#include "registry_chain.h"
#include <gtest/gtest.h>

#include <map>

namespace plait {
namespace {

/// Divides by every product of 1..4 chunks and 1..4 slices.
constexpr Ticks kUnit = 144;
constexpr OpTimes kEqualTimes{.forward = kUnit, .backward = kUnit, .weight = kUnit, .transfer = 0};

const std::vector<std::string_view> kNames = {"1f1b",
                                              "bpipe",
                                              "chimera",
                                              "ddp",
                                              "dualpipe",
                                              "dualpipev",
                                              "eager-1f1b",
                                              "forward",
                                              "fsdp",
                                              "gpipe",
                                              "hanayo",
                                              "helixpipe",
                                              "interleaved-1f1b",
                                              "interleaved-zb",
                                              "looped-bfs",
                                              "seq1f1b",
                                              "seq1f1b-interleaved",
                                              "seq1f1b-zb",
                                              "tawpipe",
                                              "v-half",
                                              "v-min",
                                              "v-zb",
                                              "weipipe",
                                              "weipipe-naive",
                                              "wzb1-reconstructed",
                                              "wzb2-reconstructed",
                                              "zb-1p",
                                              "zb-2p",
                                              "zb-h1",
                                              "zb-h2",
                                              "zb-v",
                                              "zb-v-greedy",
                                              "zero1"};

TEST(Registry, HoldsTheStableNamesSorted) {
  std::vector<std::string_view> names;
  for (const ScheduleInfo* info : all_schedules()) names.push_back(info->name);
  EXPECT_EQ(names, kNames);
}

TEST(Registry, EverySystemSaysWhatItIs) {
  for (const ScheduleInfo* info : all_schedules()) {
    for (const std::string_view text : {info->summary, info->needs, info->forms, info->source}) {
      EXPECT_FALSE(text.empty()) << info->name;
      EXPECT_EQ(text.find('\n'), std::string_view::npos) << info->name;
    }
  }
}

TEST(Registry, LookupIgnoresCaseAndListsTheNames) {
  const auto found = find_schedule("ZB-H1");
  ASSERT_TRUE(found);
  EXPECT_EQ((*found)->name, "zb-h1");
  const auto unknown = find_schedule("zb-h3");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().rule, "schedule.unknown");
  for (const std::string_view name : kNames) EXPECT_NE(unknown.error().message.find(name), std::string::npos) << name;
}

TEST(Registry, SmallGridRunsTheWholeChain) {
  std::map<std::string_view, int> ran;
  for (const ScheduleInfo* info : all_schedules())
    for (int p = 1; p <= 4; ++p)
      for (const int m : {1, 2, 3, 4, 6, 8, 9, 12})
        for (int v = 1; v <= 2; ++v)
          for (int k = 1; k <= 2; ++k)
            for (const Order order : {Order::kMegatron, Order::kTorch})
              if (run_chain(*info, {.ranks = p,
                                    .microbatches = m,
                                    .chunks = v,
                                    .slices = k,
                                    .order = order,
                                    .times = kEqualTimes}) == Outcome::kRan)
                ++ran[info->name];
  for (const std::string_view name : kNames) EXPECT_GT(ran[name], 0) << name;
}

TEST(Registry, DefaultsOfChunksAndSlicesRun) {
  for (const ScheduleInfo* info : all_schedules()) {
    for (const int p : {2, 4})
      EXPECT_EQ(run_chain(*info, {.ranks = p, .microbatches = 8, .times = kEqualTimes}), Outcome::kRan) << info->name;
  }
}

TEST(Registry, TooFewLayersAndForeignFlagsAreRefused) {
  for (const ScheduleInfo* info : all_schedules()) {
    const ScheduleShape shape{.ranks = 4, .microbatches = 8, .layers = 3};
    EXPECT_EQ(info->supports(shape).error().rule, "schedule.too_few_layers") << info->name;
    ScheduleShape folds{.ranks = 4, .microbatches = 8};
    folds.folds = 2;
    if (info->name == "helixpipe") {
      EXPECT_TRUE(info->supports(folds));
    } else {
      EXPECT_EQ(info->supports(folds).error().rule, "schedule.flag") << info->name;
    }
    if (info->name != "v-half" && info->name != "v-min") {
      ScheduleShape pattern{.ranks = 4, .microbatches = 8};
      pattern.squeeze = Squeeze::kPatternOnly;
      EXPECT_EQ(info->supports(pattern).error().rule, "schedule.flag") << info->name;
    }
    EXPECT_EQ(info->supports({.ranks = 4}).error().rule, "schedule.size") << info->name;
    EXPECT_EQ(info->supports({.ranks = 0, .microbatches = 8}).error().rule, "schedule.size") << info->name;
  }
}

TEST(Registry, OnlySlicedSchedulesTakeASliceCut) {
  for (const ScheduleInfo* info : all_schedules()) {
    ScheduleShape shape{.ranks = 4, .microbatches = 8};
    shape.slice_cut = SliceCut::kEqualCompute;
    const bool sliced = info->name.find("seq1f1b") != std::string_view::npos;
    EXPECT_EQ(info->supports(shape).has_value(), sliced) << info->name;
  }
}

TEST(Registry, LayersAndTyingReachTheLayout) {
  for (const ScheduleInfo* info : all_schedules()) {
    const auto schedule =
        build_schedule(info->name, {.ranks = 4, .microbatches = 8, .layers = 12, .tying = HeadTying::kTied});
    ASSERT_TRUE(schedule) << schedule.error().message;
    EXPECT_EQ(schedule->layout.num_layers, 12) << info->name;
    EXPECT_EQ(schedule->layout.groups.front().name, "embed") << info->name;
  }
}

TEST(InterleavedUnits, RunInGroupsAndAShortLastGroup) {
  std::vector<InterleavedUnit> units;
  for (int step = 0; step < 12; ++step) units.push_back(interleaved_unit(step, 6, 4, 2));
  const std::vector<InterleavedUnit> expected = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {0, 1}, {1, 1},
                                                 {2, 1}, {3, 1}, {4, 0}, {5, 0}, {4, 1}, {5, 1}};
  EXPECT_EQ(units, expected);
}

}  // namespace
}  // namespace plait
