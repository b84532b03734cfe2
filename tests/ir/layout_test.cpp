#include "plait/ir/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace plait {
namespace {

using testing::ElementsAre;

std::vector<int> sizes(const std::vector<PartRange>& stages) {
  std::vector<int> found;
  for (const PartRange& stage : stages) found.push_back(stage.size());
  return found;
}

std::vector<RankId> ranks(std::initializer_list<int> values) {
  std::vector<RankId> found;
  for (const int value : values) found.push_back(RankId{value});
  return found;
}

std::vector<StageId> stages(std::initializer_list<int> values) {
  std::vector<StageId> found;
  for (const int value : values) found.push_back(StageId{value});
  return found;
}

LayoutSpec two_stages() {
  return LayoutSpec{.name = "test",
                    .num_ranks = 2,
                    .num_microbatches = 3,
                    .num_layers = 2,
                    .stages = *cut_by_layers(2, 2),
                    .homes = {{RankId{0}}, {RankId{1}}}};
}

TEST(CutByLayers, GivesTheFirstStagesOneLayerMore) {
  // Five layers on three stages: 2, 2, 1; embed with the first, head with the last.
  EXPECT_THAT(sizes(*cut_by_layers(5, 3)), ElementsAre(1 + 8, 8, 4 + 1));
  EXPECT_THAT(sizes(*cut_by_layers(5, 4)), ElementsAre(1 + 8, 4, 4, 4 + 1));
  EXPECT_THAT(sizes(*cut_by_layers(4, 1)), ElementsAre(1 + 16 + 1));
  EXPECT_THAT(*cut_by_layers(3, 3), ElementsAre(PartRange{0, 5}, PartRange{5, 9}, PartRange{9, 14}));
}

TEST(CutByLayers, RefusesMoreStagesThanLayers) {
  const auto result = cut_by_layers(3, 4);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().rule, "layout.too_few_layers");
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(cut_by_layers(3, 0));
  EXPECT_FALSE(cut_by_layers(0, 1));
}

TEST(Parts, AreNamedAndNumberedInChainOrder) {
  std::vector<std::string> names;
  for (int part = 0; part < num_parts(2); ++part) {
    names.push_back(to_string(part_at(2, part)));
    EXPECT_EQ(part_index(2, part_at(2, part)), part);
  }
  EXPECT_THAT(names, ElementsAre("embed", "norm.0", "qkv.0", "attn.0", "post.0", "norm.1", "qkv.1", "attn.1", "post.1",
                                 "head"));
}

TEST(MakeLayout, GivesAChainAndOneGroupPerStage) {
  const auto layout = make_layout(two_stages());
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_THAT(layout->edges, ElementsAre(Edge{StageId{0}, StageId{1}}));
  const ParamGroup first{.name = "stage.0", .parts = {0, 1, 2, 4}, .users = stages({0}), .homes = ranks({0})};
  const ParamGroup second{.name = "stage.1", .parts = {5, 6, 8, 9}, .users = stages({1}), .homes = ranks({1})};
  EXPECT_THAT(layout->groups, ElementsAre(first, second));
  EXPECT_THAT(layout->stages[0].groups, ElementsAre(GroupId{0}));
  EXPECT_THAT(layout->stages[1].groups, ElementsAre(GroupId{1}));
  EXPECT_THAT(layout->edges_into(StageId{1}), ElementsAre(EdgeId{0}));
  EXPECT_TRUE(layout->edges_into(StageId{0}).empty());
  EXPECT_THAT(layout->edges_out_of(StageId{0}), ElementsAre(EdgeId{0}));
}

TEST(MakeLayout, AttentionAloneNeedsNoHome) {
  const LayoutSpec spec{.num_ranks = 2,
                        .num_layers = 1,
                        .stages = {PartRange{0, 3}, PartRange{3, 4}, PartRange{4, 6}},
                        .homes = {{RankId{0}}, {}, {RankId{1}}}};
  const auto layout = make_layout(spec);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_TRUE(layout->stages[1].homes.empty());
  EXPECT_TRUE(layout->stages[1].groups.empty());
  EXPECT_EQ(layout->groups.size(), 2U);
}

TEST(MakeLayout, SharesATiedTableBetweenBothEnds) {
  LayoutSpec spec = two_stages();
  spec.tying = HeadTying::kTied;
  const auto layout = make_layout(spec);
  ASSERT_TRUE(layout);
  const ParamGroup table{.name = "embed", .parts = {0}, .users = stages({0, 1}), .homes = ranks({0, 1})};
  const ParamGroup first{.name = "stage.0", .parts = {1, 2, 4}, .users = stages({0}), .homes = ranks({0})};
  const ParamGroup second{.name = "stage.1", .parts = {5, 6, 8, 9}, .users = stages({1}), .homes = ranks({1})};
  EXPECT_THAT(layout->groups, ElementsAre(table, first, second));
  EXPECT_THAT(layout->stages[0].groups, ElementsAre(GroupId{0}, GroupId{1}));
  EXPECT_THAT(layout->stages[1].groups, ElementsAre(GroupId{0}, GroupId{2}));
}

TEST(MakeLayout, KeepsATiedTableInsideItsOnlyStage) {
  const auto layout = make_layout(
      LayoutSpec{.num_layers = 1, .tying = HeadTying::kTied, .stages = *cut_by_layers(1, 1), .homes = {{RankId{0}}}});
  ASSERT_TRUE(layout);
  EXPECT_THAT(
      layout->groups,
      ElementsAre(ParamGroup{.name = "stage.0", .parts = {0, 1, 2, 4, 5}, .users = stages({0}), .homes = ranks({0})}));
}

TEST(MakeLayout, SortsHomesAndDropsRepeats) {
  LayoutSpec spec = two_stages();
  spec.homes = {{RankId{1}, RankId{0}, RankId{1}}, {RankId{1}}};
  EXPECT_THAT(make_layout(spec)->stages[0].homes, ElementsAre(RankId{0}, RankId{1}));
}

TEST(MakeLayout, GivesAttentionStagesNoGroup) {
  LayoutSpec spec{.num_ranks = 1,
                  .num_layers = 1,
                  .stages = {{0, 3}, {3, 4}, {4, 6}},
                  .homes = {{RankId{0}}, {RankId{0}}, {RankId{0}}}};
  const auto layout = make_layout(spec);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->groups.size(), 2U);
  EXPECT_TRUE(layout->stages[1].groups.empty());
  EXPECT_EQ(layout->groups[1].name, "stage.2");
}

TEST(MakeLayout, RefusesWhatIsNoLayout) {
  const auto rule_of = [](auto change) {
    LayoutSpec spec = two_stages();
    change(spec);
    const auto result = make_layout(spec);
    return result ? std::string("accepted") : result.error().rule;
  };
  EXPECT_EQ(rule_of([](LayoutSpec&) {}), "accepted");
  EXPECT_EQ(rule_of([](LayoutSpec& s) { s.num_ranks = 0; }), "layout.size");
  EXPECT_EQ(rule_of([](LayoutSpec& s) { s.num_microbatches = -1; }), "layout.size");
  EXPECT_EQ(rule_of([](LayoutSpec& s) { s.stages.clear(); }), "layout.size");
  EXPECT_EQ(rule_of([](LayoutSpec& s) { s.stages.pop_back(); }), "layout.cut");
  EXPECT_EQ(rule_of([](LayoutSpec& s) { s.stages[1].begin = 4; }), "layout.cut");
  EXPECT_EQ(rule_of([](LayoutSpec& s) { s.homes.pop_back(); }), "layout.homes");
  EXPECT_EQ(rule_of([](LayoutSpec& s) { s.homes[0].clear(); }), "layout.homes");
  EXPECT_EQ(rule_of([](LayoutSpec& s) { s.homes[1] = {RankId{2}}; }), "layout.homes");
}

TEST(InternRankSet, FindsTheSameSetAgain) {
  Layout layout;
  const RankSetId first = intern_rank_set(layout, ranks({1, 0}));
  EXPECT_EQ(intern_rank_set(layout, ranks({0, 1, 1})), first);
  EXPECT_NE(intern_rank_set(layout, ranks({0})), first);
  EXPECT_THAT(layout.rank_sets, ElementsAre(ranks({0, 1}), ranks({0})));
}

TEST(Rebind, CutsTheSameOrderForAnotherModel) {
  Schedule schedule{.layout = *make_layout(two_stages()), .rows = {{Idle{}}, {Turn{}}}};
  schedule.layout.newline = Newline::kCrlf;
  const auto bound = rebind(schedule, 5, HeadTying::kTied);
  ASSERT_TRUE(bound);
  EXPECT_THAT(bound->layout.stages[0].parts, (PartRange{0, 13}));
  EXPECT_EQ(bound->layout.groups.size(), 3U);
  EXPECT_EQ(bound->layout.newline, Newline::kCrlf);
  EXPECT_EQ(bound->rows, schedule.rows);
  EXPECT_EQ(rebind(schedule, 1, HeadTying::kUntied).error().rule, "layout.too_few_layers");
}

}  // namespace
}  // namespace plait
