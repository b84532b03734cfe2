#include "tests/cli/run_plait.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <set>

namespace plait {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

const std::vector<std::string> kP2M2 = {"--ranks", "2", "--microbatches", "2"};
const std::vector<std::string> kP4M8 = {"--ranks", "4", "--microbatches", "8"};

// The example (a) of PyTorch's format: 1F1B on two ranks, three micro-batches.
constexpr const char* kCompute = "0F0,0F1,,0B0,0F2,,0B1,,0B2\n,1F0,1B0,1F1,1B1,1F2,1B2\n";

TEST(Plait, HelpNamesEveryCommandOnStandardOutput) {
  const Outcome outcome = run_plait({"--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
  for (const char* command : {"schedule", "simulate", "info", "train", "eval", "generate", "bench"})
    EXPECT_THAT(outcome.out, HasSubstr(command));
}

struct Refused {
  std::vector<std::string> arguments;
  int exit_code;
  const char* rule;
};

TEST(Plait, RefusalsAreOneLineOnStandardErrorWithTheirExitCode) {
  const Refused cases[] = {
      {{}, 2, "[cli.flags]"},
      {{"frobnicate"}, 2, "[cli.unknown_command]"},
      {{"schedule"}, 2, "[cli.flags]"},
      {{"schedule", "frobnicate"}, 2, "[cli.unknown_command]"},
      {{"schedule", "show"}, 2, "[cli.flags]"},
      {{"schedule", "show", "gpipe", "--frobnicate"}, 2, "[cli.flags]"},
      {{"schedule", "show", "gpipe", "--ranks", "two"}, 2, "[cli.flags]"},
      {{"schedule", "show", "gpipe", "--format", "png"}, 2, "[cli.flags]"},
      {{"schedule", "show", "gpipe", "--microbatches", "2"}, 2, "[flags.missing]"},
      {{"schedule", "show", "gpipe", "--ranks", "2"}, 2, "[flags.missing]"},
      {{"schedule", "show", "gpipe", "--ranks", "0", "--microbatches", "2"}, 2, "[schedule.size]"},
      {{"schedule", "show", "gpipe", "--ranks", "-1", "--microbatches", "2"}, 2, "[schedule.size]"},
      {{"schedule", "show", "gpipe", "--ranks", "4", "--microbatches", "2", "--layers", "3"},
       2,
       "[schedule.too_few_layers]"},
      {{"schedule", "show", "nothing-of-this-name", "--ranks", "2", "--microbatches", "2"}, 2, "[schedule.unknown]"},
      {{"schedule", "check", "no/such/file.csv"}, 3, "[io.read]"},
      {{"schedule", "convert", "no/such/file.csv", "x.plait"}, 3, "[io.read]"},
      {{"simulate", "gpipe", "--ranks", "2", "--microbatches", "2", "--times", "F=-1,B=1,W=1"}, 2, "[times.negative]"},
      {{"simulate", "gpipe", "--ranks", "2", "--microbatches", "2", "--latency", "-1"}, 2, "[times.negative]"},
      {{"schedule", "lower", "gpipe", "--ranks", "2", "--microbatches", "2", "--defer-recv"}, 2, "[flags.conflict]"},
      {{"schedule", "show", "gpipe", "--ranks", "2", "--microbatches", "2", "--torch-version", "1.0"}, 2, "["},
      {{"schedule", "check", "gpipe", "--ranks", "2", "--microbatches", "2", "--transfers", "bounded", "--buffers",
        "0"},
       2,
       "[flags.buffers]"},
  };
  for (const Refused& refused : cases) {
    const Outcome outcome = run_plait(refused.arguments);
    const std::string shown = testing::PrintToString(refused.arguments);
    EXPECT_EQ(outcome.exit_code, refused.exit_code) << shown << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty()) << shown;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("plait: "), HasSubstr(refused.rule), EndsWith("]\n"))) << shown;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << shown << outcome.err;
  }
}

TEST(Plait, TrainingCommandsNeedTheProgramBesideIt) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(PLAIT_BIN, folder.file("plait"));
  const Outcome outcome = run_program(folder.file("plait"), {"train", "--steps", "1"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("was not built"), HasSubstr("make build"), HasSubstr("[cli.no_run]")));
}

TEST(Plait, HandsTheArgumentsOverUntouched) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(PLAIT_BIN, folder.file("plait"));
  write_text(folder.file("plait-run"), "#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 7\n");
  std::filesystem::permissions(folder.file("plait-run"), std::filesystem::perms::owner_all);
  const Outcome outcome =
      run_program(folder.file("plait"), {"generate", "--prompt", "In the beginning", "--help", "-x"});
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_EQ(outcome.out, "<generate><--prompt><In the beginning><--help><-x>");
}

TEST(List, HasEverySchedulesNameNeedsFormsAndSource) {
  const Outcome outcome = run_plait({"schedule", "list", "--format", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::set<std::string> names;
  for (const json& schedule : json::parse(outcome.out)) {
    names.insert(schedule.at("name"));
    for (const char* key : {"summary", "needs", "forms", "source"})
      EXPECT_FALSE(schedule.at(key).get<std::string>().empty()) << schedule;
  }
  EXPECT_TRUE(names.contains("gpipe"));
  EXPECT_TRUE(names.contains("1f1b"));
  EXPECT_THAT(run_plait({"schedule", "list"}).out, AllOf(StartsWith("name "), HasSubstr("\n1f1b ")));
}

TEST(Show, DrawsAGridInTime) {
  const Outcome outcome = run_plait(with({"schedule", "show", "1f1b"}, kP2M2));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  // Columns are units of time: rank 1 starts at 1 and ends at 7, rank 0 at 8.
  EXPECT_EQ(outcome.out,
            "rank 0  F0 F1 .  .  BW0-- .  BW1--\n"
            "rank 1  .  F0 BW0-- F1 BW1-- .  .\n");
}

TEST(Show, PrintsComputeOnlyCsv) {
  const Outcome outcome = run_plait(with({"schedule", "show", "1f1b", "--format", "csv"}, kP2M2));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::string text = outcome.out;
  std::erase(text, '\r');
  EXPECT_EQ(text, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(Show, TextComesBackTheSame) {
  const TemporaryFolder folder;
  const Outcome text = run_plait(with({"schedule", "show", "1f1b", "--format", "text"}, kP4M8));
  ASSERT_EQ(text.exit_code, 0) << text.err;
  write_text(folder.file("a.plait"), text.out);
  EXPECT_EQ(run_plait({"schedule", "show", folder.file("a.plait"), "--format", "text"}).out, text.out);
  EXPECT_EQ(run_plait({"schedule", "check", folder.file("a.plait")}).exit_code, 0);
}

TEST(Show, JsonHoldsEveryOpOfEveryRank) {
  const Outcome outcome = run_plait(with({"schedule", "show", "gpipe", "--format", "json"}, kP2M2));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json shown = json::parse(outcome.out);
  EXPECT_EQ(shown.at("ranks"), 2);
  EXPECT_EQ(shown.at("microbatches"), 2);
  EXPECT_EQ(shown.at("rows").at(1).at(2), (json{{"kind", "BW"}, {"stage", 1}, {"microbatch", 0}, {"slice", 0}}));
  EXPECT_EQ(shown.at("stages").at(0).at("homes"), json::array({0}));
}

TEST(Show, SvgIsOnePicture) {
  const Outcome outcome = run_plait(with({"schedule", "show", "gpipe", "--format", "svg"}, kP2M2));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("<svg"), HasSubstr("</svg>")));
}

TEST(Files, SizesMustAgreeAndNamesAloneTakeShapes) {
  const TemporaryFolder folder;
  write_text(folder.file("a.csv"), kCompute);
  const std::string file = folder.file("a.csv");
  EXPECT_EQ(run_plait({"schedule", "show", file, "--ranks", "2", "--microbatches", "3"}).exit_code, 0);
  EXPECT_THAT(run_plait({"schedule", "show", file, "--ranks", "4"}).err,
              HasSubstr("--ranks 4, but " + file + " is for 2"));
  EXPECT_THAT(run_plait({"schedule", "show", file, "--order", "torch"}).err, HasSubstr("[flags.conflict]"));
  const Outcome deeper = run_plait({"schedule", "show", file, "--layers", "5", "--head", "tied", "--format", "json"});
  ASSERT_EQ(deeper.exit_code, 0) << deeper.err;
  EXPECT_EQ(json::parse(deeper.out).at("layers"), 5);
  EXPECT_EQ(json::parse(deeper.out).at("head"), "tied");
}

TEST(Stats, CountAPairOnceAndACollectiveOncePerMember) {
  const Outcome outcome =
      run_plait({"schedule", "stats", "1f1b", "--ranks", "4", "--microbatches", "4", "--format", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json stats = json::parse(outcome.out);
  // (p-1) m activations down, as many gradients up; one square sum of the gradients over all.
  EXPECT_EQ(stats.at("total").at("send"), (json{{"activation", 12}, {"gradient", 12}}));
  EXPECT_EQ(stats.at("total").at("all_reduce"), (json{{"norm", 1}}));
  EXPECT_EQ(stats.at("total").at("op"), (json{{"F", 16}, {"BW", 16}}));
  EXPECT_FALSE(stats.at("total").contains("recv"));
  ASSERT_EQ(stats.at("ranks").size(), 4U);
  EXPECT_EQ(stats.at("ranks").at(0).at("send"), (json{{"activation", 4}}));
  EXPECT_EQ(stats.at("ranks").at(3).at("send"), (json{{"gradient", 4}}));
  for (const json& rank : stats.at("ranks")) EXPECT_EQ(rank.at("all_reduce"), (json{{"norm", 1}}));
}

TEST(Stats, CountATiedTablesReductionOverItsTwoHomes) {
  const Outcome outcome = run_plait(
      {"schedule", "stats", "1f1b", "--ranks", "3", "--microbatches", "4", "--head", "tied", "--format", "json"});
  const json stats = json::parse(outcome.out);
  EXPECT_EQ(stats.at("total").at("all_reduce"), (json{{"norm", 1}, {"wgrad", 1}}));
  EXPECT_EQ(stats.at("ranks").at(0).at("all_reduce"), (json{{"norm", 1}, {"wgrad", 1}}));
  EXPECT_EQ(stats.at("ranks").at(1).at("all_reduce"), (json{{"norm", 1}}));
}

TEST(Check, ProvesUnderAllThreeRules) {
  const Outcome outcome = run_plait(with({"schedule", "check", "1f1b"}, kP4M8));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* rule : {"\nbuffered    proved\n", "\nbounded     proved", "\nrendezvous  proved\n"})
    EXPECT_THAT(outcome.out, HasSubstr(rule));
}

TEST(Check, ReportsWhatIsWrongWithItsRuleAndExitsWithOne) {
  const TemporaryFolder folder;
  // Rank 1 lacks the last backward.
  write_text(folder.file("a.csv"), "0F0,0B0\n1F0\n");
  const Outcome outcome = run_plait({"schedule", "check", folder.file("a.csv")});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out + outcome.err, HasSubstr("[verify."));
}

/// Two ranks that each send before they receive: nothing moves when both block.
TEST(Check, TheExitCodeFollowsTheAskedRule) {
  const TemporaryFolder folder;
  const Outcome text = run_plait({"schedule", "lower", "gpipe", "--ranks", "2", "--microbatches", "2"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  // Rank 1 posts the receive of micro-batch 1 only after it has sent the gradient of micro-batch 0 ... and rank 0 first
  // sends both activations: with rendezvous rank 0 blocks in its second send while rank 1 blocks in its first.
  std::string program = text.out;
  const std::string receive = "recv(act,0>1,1)<-0";
  const auto at = program.find(receive);
  ASSERT_NE(at, std::string::npos) << program;
  program.erase(at, receive.size());
  const std::string op = "1F1";
  const auto forward = program.find(op, at);
  ASSERT_NE(forward, std::string::npos) << program;
  const std::string early_backward = "1BW0 send(grad,0>1,0)->0 ";
  for (const std::string gone : {"1BW0 ", "send(grad,0>1,0)->0 "}) {
    const auto place = program.find(gone, forward);
    ASSERT_NE(place, std::string::npos) << program;
    program.erase(place, gone.size());
  }
  program.insert(forward, early_backward + receive + " ");
  write_text(folder.file("a.plait"), program);
  const std::string file = folder.file("a.plait");
  const Outcome buffered = run_plait({"schedule", "check", file});
  EXPECT_EQ(buffered.exit_code, 0) << buffered.out << buffered.err << program;
  EXPECT_THAT(buffered.out, HasSubstr("\nrendezvous  1 findings\n"));
  EXPECT_THAT(buffered.out, HasSubstr("[verify.deadlock]"));
  EXPECT_EQ(run_plait({"schedule", "check", file, "--transfers", "rendezvous"}).exit_code, 1);
}

TEST(Check, HoldsActivationsToAMemoryLimit) {
  EXPECT_EQ(run_plait(with({"schedule", "check", "1f1b", "--memory-limit", "4"}, kP4M8)).exit_code, 0);
  const Outcome outcome = run_plait(with({"schedule", "check", "1f1b", "--memory-limit", "3"}, kP4M8));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("[verify."));
}

TEST(Lower, WritesWhatPyTorchWrites) {
  const TemporaryFolder folder;
  write_text(folder.file("a.csv"), kCompute);
  const Outcome outcome =
      run_plait({"schedule", "lower", folder.file("a.csv"), "--format", "csv-comms", "--torch-version", "2.10"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  // The worked example of rules 1 to 3, before the waiting actions came.
  EXPECT_EQ(
      outcome.out,
      "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2,0REDUCE_GRAD,0RESHARD\n"
      "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1RECV_F2,1B1,1SEND_B1,1F2,1B2,1SEND_B2,1REDUCE_GRAD,1RESHARD\n");
}

TEST(Diff, FindsTheFirstDifference) {
  const Outcome outcome =
      run_plait({"schedule", "diff", "gpipe", "1f1b", "--ranks", "2", "--microbatches", "4", "--format", "json"});
  EXPECT_EQ(outcome.exit_code, 1);
  const json diff = json::parse(outcome.out);
  EXPECT_EQ(diff.at("equal"), false);
  EXPECT_EQ(diff.at("first_difference"), (json{{"rank", 0}, {"position", 2}, {"left", "0F2"}, {"right", "0BW0"}}));
  for (const json& rank : diff.at("ranks")) {
    EXPECT_EQ(rank.at("only_left"), 0);
    EXPECT_EQ(rank.at("only_right"), 0);
    EXPECT_GT(rank.at("moved"), 0);
  }
  const Outcome same = run_plait(with({"schedule", "diff", "1f1b", "1f1b"}, kP4M8));
  EXPECT_EQ(same.exit_code, 0);
  EXPECT_EQ(same.out, "equal\n");
}

TEST(Diff, ComparesFilesWithNames) {
  const TemporaryFolder folder;
  write_text(folder.file("a.csv"), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(run_plait(with({"schedule", "diff", folder.file("a.csv"), "1f1b"}, kP2M2)).exit_code, 0);
  EXPECT_EQ(run_plait(with({"schedule", "diff", folder.file("a.csv"), "gpipe"}, kP2M2)).exit_code, 1);
}

TEST(Convert, FollowsTheNamesEndings) {
  const TemporaryFolder folder;
  write_text(folder.file("a.csv"), kCompute);
  ASSERT_EQ(run_plait({"schedule", "convert", "a.csv", "b.plait"}, folder.path()).exit_code, 0);
  ASSERT_EQ(run_plait({"schedule", "convert", "b.plait", "c.csv"}, folder.path()).exit_code, 0);
  EXPECT_EQ(read_text(folder.file("c.csv")), kCompute);
  EXPECT_EQ(run_plait({"schedule", "convert", "a.csv", "-", "--to", "csv"}, folder.path()).out, kCompute);
  const Outcome unnamed = run_plait({"schedule", "convert", "a.csv", "out"}, folder.path());
  EXPECT_EQ(unnamed.exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(folder.file("out")));
}

TEST(Convert, BadInputLeavesNoFile) {
  const TemporaryFolder folder;
  write_text(folder.file("bad.csv"), "0F0,0X0\n");
  const Outcome outcome = run_plait({"schedule", "convert", "bad.csv", "out.plait"}, folder.path());
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("row 1, column 2"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("out.plait")));
}

// Without a barrier the ranks of zb-h2 follow each other 24 ops apart; the makespan has the skew of three.
TEST(Simulate, PostValidationShortensThePeriod) {
  for (const bool validates : {false, true}) {
    std::vector<std::string> words = with({"simulate", "zb-h2", "--format", "json"}, kP4M8);
    if (validates) words.emplace_back("--post-validation");
    const Outcome outcome = run_plait(words);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const json figures = json::parse(outcome.out);
    EXPECT_EQ(figures.at("makespan"), 27);
    EXPECT_EQ(figures.at("period"), validates ? 24 : 27);
  }
}

TEST(PostValidation, IsRefusedWhereNothingSteps) {
  const Outcome outcome = run_plait(with({"schedule", "show", "forward", "--post-validation"}, kP4M8));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("has forwards only"));
}

TEST(PostValidation, OfAProgramDemandsOneWithoutANorm) {
  const TemporaryFolder folder;
  const Outcome lowered = run_plait(with({"schedule", "lower", "zb-h1", "--format", "text"}, kP4M8));
  ASSERT_EQ(lowered.exit_code, 0) << lowered.err;
  write_text(folder.file("waits.plait"), lowered.out);
  const Outcome refused = run_plait({"schedule", "check", "waits.plait", "--post-validation"}, folder.path());
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("takes the norm itself"));
  std::string without = lowered.out;
  for (const std::string word : {"all_reduce(norm)@0", "wait(all_reduce,norm)"})
    for (std::size_t at; (at = without.find(word)) != std::string::npos;) without.erase(at, word.size());
  write_text(folder.file("without.plait"), without);
  const Outcome proved = run_plait({"schedule", "check", "without.plait", "--post-validation"}, folder.path());
  EXPECT_EQ(proved.exit_code, 0) << proved.out << proved.err;
}

TEST(Simulate, HasTheFiguresOfTheStep) {
  const Outcome outcome =
      run_plait(with({"simulate", "1f1b", "--times", "F=1,B=1.2,W=0.8", "--format", "json"}, kP4M8));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json figures = json::parse(outcome.out);
  EXPECT_EQ(figures.at("makespan"), 33);  // (m + p - 1)(F + B + W)
  EXPECT_EQ(figures.at("period"), 33);
  EXPECT_EQ(figures.at("bubble_max"), 9);  // (p - 1)(F + B + W)
  EXPECT_DOUBLE_EQ(figures.at("bubble_ratio").get<double>(), 9.0 / 33.0);
  EXPECT_EQ(figures.at("transfers").at("count"), 48);
  std::vector<double> peaks;
  for (const json& rank : figures.at("ranks")) peaks.push_back(rank.at("peak_activations"));
  EXPECT_THAT(peaks, testing::ElementsAre(4, 3, 2, 1));
}

/// A published bubble rate of the zero-bubble paper: ZB-1p, 8 devices, 24 micro-batches, profiled times.
TEST(Simulate, BuildsFromTheTimesItSimulates) {
  const Outcome outcome = run_plait({"simulate", "zb-1p", "--ranks", "8", "--microbatches", "24", "--times",
                                     "F=18.522,B=18.086,W=9.337", "--latency", "0.601", "--format", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NEAR(json::parse(outcome.out).at("bubble_c").get<double>(), 0.1585, 0.00005);
}

TEST(Info, NamesTheBuild) {
  const json info = json::parse(run_plait({"info", "--format", "json"}).out);
  EXPECT_EQ(info.at("version"), "0.1.0");
  EXPECT_EQ(info.at("devices").at(0).at("kind"), "cpu");
}

}  // namespace
}  // namespace plait
