// Steps that stand before the norm is known: each is validated once, and nothing reads what may be undone.

#include "plait/base/files.h"
#include "plait/ir/lower.h"
#include "plait/ir/text.h"
#include "plait/schedules/schedule_info.h"
#include "plait/verify/verify.h"

#include <gmock/gmock.h>

namespace plait::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

/// The program of tests/error/sound with one place changed.
Program with(const std::string& from, const std::string& to) {
  std::string text = *read_file(std::string(PLAIT_SOURCE_DIR) + "/tests/error/sound/post_validated.plait");
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  auto program = parse_text(text, "changed.plait");
  EXPECT_TRUE(program) << program.error().message;
  return std::get<Program>(*program);
}

/// (rule, rank) of each finding.
std::vector<std::pair<std::string, int>> found(const Program& program) {
  std::vector<std::pair<std::string, int>> all;
  for (const Finding& finding : verify(program))
    all.emplace_back(finding.rule, finding.rank ? finding.rank->value() : -1);
  return all;
}

const std::string kTail = "step(stage.1) validate(norm)";

TEST(PostValidation, IsSound) {
  EXPECT_THAT(found(with(kTail, kTail)), IsEmpty());
}

TEST(PostValidation, IsDemanded) {
  EXPECT_THAT(found(with(kTail, "step(stage.1)")), ElementsAre(Pair("verify.step_before_norm", 1)));
  EXPECT_THAT(found(with(kTail, "step(stage.1) wait(all_reduce,norm)")),
              ElementsAre(Pair("verify.step_before_norm", 1)));
}

TEST(PostValidation, DoesNotValidateWhatIsSteppedBehindIt) {
  // That is a step behind the norm, and as good.
  EXPECT_THAT(found(with(kTail, "validate(norm) step(stage.1)")), IsEmpty());
}

TEST(PostValidation, HappensOnce) {
  EXPECT_THAT(found(with(kTail, kTail + " validate(norm)")), ElementsAre(Pair("verify.validate_twice", 1)));
}

TEST(PostValidation, JudgesByANormThatIsUnderWay) {
  EXPECT_THAT(found(with("all_reduce(norm)@0 " + kTail, "all_reduce(norm)@0 wait(all_reduce,norm) " + kTail)),
              ElementsAre(Pair("verify.wait_without_collective", 1)));
  EXPECT_THAT(found(with("all_reduce(norm)@0 " + kTail, kTail + " all_reduce(norm)@0")),
              ElementsAre(Pair("verify.wait_without_collective", 1)));
}

TEST(PostValidation, TheNormMayBeginBehindTheSteps) {
  EXPECT_THAT(found(with("all_reduce(norm)@0 " + kTail, "step(stage.1) all_reduce(norm)@0 validate(norm)")), IsEmpty());
}

TEST(PostValidation, NothingReadsWhatMayBeUndone) {
  // A backward behind the step, in front of the validation.
  EXPECT_THAT(found(with("1F1 1BW1 send(grad,0>1,1)->0\n  wait(send,grad,0>1,0)->0 wait(send,grad,0>1,1)->0 "
                         "all_reduce(norm)@0 step(stage.1)",
                         "1F1 step(stage.1) 1BW1 send(grad,0>1,1)->0\n  wait(send,grad,0>1,0)->0 "
                         "wait(send,grad,0>1,1)->0 all_reduce(norm)@0")),
              ElementsAre(Pair("verify.step_too_early", 1)));
  // The weights themselves travel.
  Program program = with(kTail, kTail);
  Row& row = program.rows[1];
  row.insert(row.end() - 1, Send{.value = Value::weight(GroupId{1}), .peer = RankId{0}});
  row.push_back(WaitSend{.value = Value::weight(GroupId{1}), .peer = RankId{0}});
  program.rows[0].push_back(Recv{.value = Value::weight(GroupId{1}), .peer = RankId{1}});
  program.rows[0].push_back(Free{.value = Value::weight(GroupId{1})});
  EXPECT_THAT(found(program), ElementsAre(Pair("verify.step_too_early", 1)));
}

TEST(PostValidation, AllSchedulesCanHaveIt) {
  for (const ScheduleInfo* info : all_schedules()) {
    auto schedule = build_schedule(info->name, {.ranks = 4, .microbatches = 8, .layers = 8});
    if (!schedule) continue;
    if (schedule->layout.mode == Mode::kForward) continue;
    schedule->layout.steps = StepOrder::kPostValidated;
    const auto program = lower(*schedule);
    ASSERT_TRUE(program) << info->name;
    EXPECT_THAT(found(*program), IsEmpty()) << info->name;
    for (const Row& row : program->rows) EXPECT_EQ(row.back(), Instr(Validate{})) << info->name;
    const auto again = parse_text(print_text(*program), "again.plait");
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(std::get<Program>(*again), *program) << info->name;
  }
}

TEST(AddValidation, ValidatesTheStepsOfAProgramWithoutANorm) {
  auto schedule = build_schedule("1f1b", {.ranks = 2, .microbatches = 4, .layers = 4});
  ASSERT_TRUE(schedule);
  const auto waits = lower(*schedule);
  ASSERT_TRUE(waits);
  const auto refused = add_validation(*waits);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().rule, "lower.validated");
  Program without = *waits;
  for (Row& row : without.rows)
    std::erase_if(row, [](const Instr& instr) {
      const auto* entry = std::get_if<Collective>(&instr);
      const auto* wait = std::get_if<WaitCollective>(&instr);
      return (entry != nullptr && entry->value == Value::norm()) || (wait != nullptr && wait->value == Value::norm());
    });
  ASSERT_THAT(found(without), IsEmpty());
  const auto validated = add_validation(without);
  ASSERT_TRUE(validated);
  EXPECT_THAT(found(*validated), IsEmpty());
  for (std::size_t rank = 0; rank < without.rows.size(); ++rank) {
    Row expected = without.rows[rank];
    const RankSetId everyone = std::get<Collective>(validated->rows[rank][expected.size()]).ranks;
    expected.push_back(Collective{.ranks = everyone, .root = {}, .value = Value::norm()});
    expected.push_back(Validate{});
    EXPECT_EQ(validated->rows[rank], expected);
    EXPECT_EQ(validated->layout.rank_sets[everyone.index()], (std::vector<RankId>{RankId{0}, RankId{1}}));
  }
}

}  // namespace
}  // namespace plait::testing
