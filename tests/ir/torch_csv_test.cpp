#include "plait/ir/torch_csv.h"

#include "plait/ir/file.h"
#include "plait/ir/lower.h"
#include "plait/ir/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace plait {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::string_view kCompute = "0F0,0F1,,0B0,0F2,,0B1,,0B2\n,1F0,1B0,1F1,1B1,1F2,1B2\n";
constexpr std::string_view kTransfersOnly =
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2\n"
    "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1RECV_F2,1B1,1SEND_B1,1F2,1B2,1SEND_B2\n";
constexpr std::string_view kComms =
    "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\n"
    "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1RESHARD,1WAIT_SEND_B0\n";

/// Import, then export in the same version.
std::string round_trip(std::string_view text, const TorchCsvOptions& options = {}) {
  const auto csv = import_torch_csv(text, "f.csv", options);
  if (!csv) return csv.error().message;
  const auto out = std::holds_alternative<Schedule>(csv->content)
                       ? export_torch_csv(std::get<Schedule>(csv->content))
                       : export_torch_csv(std::get<Program>(csv->content), options.version);
  return out ? *out : out.error().message;
}

std::string with_crlf(std::string_view text) {
  std::string result;
  for (const char c : text) result += c == '\n' ? "\r\n" : std::string(1, c);
  return result;
}

TEST(TorchCsv, RoundTripsBothFormatsInBothLineEnds) {
  for (const std::string_view text : {kCompute, kComms}) {
    EXPECT_EQ(round_trip(text), text);
    EXPECT_EQ(round_trip(with_crlf(text)), with_crlf(text));
  }
}

TEST(TorchCsv, ReadsComputeOnlyAsAScheduleWithIdleCells) {
  const auto csv = import_torch_csv("0F0,,0I0,0W0\r\n(1F0;1B0)OVERLAP_F_B,\r\n", "folder/two.csv");
  ASSERT_TRUE(csv) << csv.error().message;
  const auto expected = parse_text(R"(plait 1 schedule
      name "two"
      ranks 2
      microbatches 1
      layers 2
      newline crlf
      stage 0 embed..post.0 @0
      stage 1 norm.1..head @1
      rank 0: 0F0 . 0B0 0W0
      rank 1: & 1F0 1BW0 .
      )",
                                   "expected");
  ASSERT_TRUE(expected) << expected.error().message;
  EXPECT_EQ(csv->content, *expected);
}

TEST(TorchCsv, ReadsComputeCommsAsAProgramWithWhatTheFormatLeavesImplicit) {
  const auto csv = import_torch_csv(kComms, "two.csv");
  ASSERT_TRUE(csv) << csv.error().message;
  const auto expected = parse_text(R"(plait 1 program
      name "two"
      ranks 2
      microbatches 1
      layers 2
      stage 0 embed..post.0 @0
      stage 1 norm.1..head @1
      group stage.0 parts embed..post.0 users 0 homes 0 sharded
      group stage.1 parts norm.1..head users 1 homes 1 sharded
      set 0 0
      set 1 1
      set 2 0..1
      rank 0: all_gather(weight,stage.0)@0 0F0 send(act,0>1,0)->1 recv(grad,0>1,0)<-1 0BW0 wait(send,act,0>1,0)->1
              reduce_scatter(wgrad,stage.0)@0 wait(reduce_scatter,wgrad,stage.0) free(weight,stage.0)
              all_reduce(norm)@2 wait(all_reduce,norm) step(stage.0)
      rank 1: all_gather(weight,stage.1)@1 recv(act,0>1,0)<-0 1F0 1BW0 send(grad,0>1,0)->0
              reduce_scatter(wgrad,stage.1)@1 wait(reduce_scatter,wgrad,stage.1) free(weight,stage.1)
              wait(send,grad,0>1,0)->0 all_reduce(norm)@2 wait(all_reduce,norm) step(stage.1)
      )",
                                   "expected");
  ASSERT_TRUE(expected) << expected.error().message;
  EXPECT_EQ(csv->content, *expected);
}

TEST(TorchCsv, InfersAnyPlacement) {
  const auto csv = import_torch_csv("0F0,3F0,3B0,0B0\n2F0,1F0,1B0,2B0\n", "f", {.checks = CsvChecks::kForm});
  ASSERT_TRUE(csv) << csv.error().message;
  std::vector<int> homes;
  for (const Stage& stage : std::get<Schedule>(csv->content).layout.stages)
    homes.push_back(stage.homes.front().value());
  EXPECT_THAT(homes, ElementsAre(0, 1, 1, 0));
}

TEST(TorchCsv, OlderTorchesHaveNoWaitsAndBefore210NoReductions) {
  const TorchCsvOptions torch_2_14{.version = {2, 14}};
  std::string without_waits(kComms);
  for (const std::string_view wait : {",0WAIT_SEND_F0", ",0WAIT_REDUCE_GRAD", ",1WAIT_REDUCE_GRAD", ",1WAIT_SEND_B0"})
    without_waits.erase(without_waits.find(wait), wait.size());
  EXPECT_EQ(round_trip(without_waits, torch_2_14), without_waits);
  EXPECT_EQ(round_trip(kTransfersOnly, torch_2_14), kTransfersOnly);

  // The waits that the newest torch would write are there, so the two files are the same program.
  const auto old_file = import_torch_csv(without_waits, "f", torch_2_14);
  ASSERT_TRUE(old_file) << old_file.error().message;
  EXPECT_EQ(old_file->content, import_torch_csv(kComms, "f")->content);

  // Reductions stand at the row's end where the version's files cannot hold them.
  const std::string before_2_10 = "0UNSHARD,0F0,0B0,0RESHARD\n";
  EXPECT_EQ(round_trip(before_2_10, {.version = {2, 9}}), before_2_10);
  const auto oldest = import_torch_csv(before_2_10, "f", {.version = {2, 9}});
  ASSERT_TRUE(oldest) << oldest.error().message;
  EXPECT_THAT(print_text(std::get<Program>(oldest->content)),
              HasSubstr("free(weight,stage.0) reduce_scatter(wgrad,stage.0)@0\n  wait(reduce_scatter,wgrad,stage.0)"));
}

TEST(TorchCsv, ParsesVersions) {
  EXPECT_EQ(*parse_torch_version("2.15"), (TorchVersion{2, 15}));
  EXPECT_EQ(*parse_torch_version("2.9.1"), (TorchVersion{2, 9}));
  for (const std::string_view text : {"", "2", "2.", "2.15.", "2.15.0.1", "x", "2.-1", "-2.15", "2.15+cpu"})
    EXPECT_EQ(parse_torch_version(text).error().code, ErrorCode::kInvalidArgument) << text;
  EXPECT_EQ(parse_torch_version("2.4").error().code, ErrorCode::kUnsupported);
}

struct Malformed {
  std::string_view name;
  std::string text;
  std::string_view rule;
  std::string_view message;
  TorchCsvOptions options = {};
};

class MalformedCsv : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedCsv, IsRefusedWithRowAndColumn) {
  const auto csv = import_torch_csv(GetParam().text, "f", GetParam().options);
  ASSERT_FALSE(csv);
  EXPECT_EQ(csv.error().rule, GetParam().rule);
  EXPECT_THAT(csv.error().message, testing::StartsWith(std::string(GetParam().message)));
  EXPECT_EQ(csv.error().code, ErrorCode::kInvalidSchedule);
}

std::string damaged(std::string_view text, std::string_view piece, std::string_view by) {
  std::string result(text);
  const std::size_t at = result.find(piece);
  EXPECT_NE(at, std::string::npos) << piece;
  return result.replace(at, piece.size(), by);
}

INSTANTIATE_TEST_SUITE_P(
    Table, MalformedCsv,
    testing::Values(
        Malformed{"empty", "", "csv.empty", "f, row 1, column 1: the file is empty"},
        Malformed{"trailing_blank_line", "0F0,0B0\n\n", "csv.blank_line",
                  "f, row 2, column 1: a blank line counts as a rank"},
        Malformed{"only_idle", "0F0,0B0\n,,\n", "csv.empty_rank", "f, row 2, column 1: rank 1 has no action"},
        Malformed{"junk", "0F0junk,0B0\n", "csv.trailing",
                  "f, row 1, column 1: '0F0junk': 'junk' stands behind the action"},
        Malformed{"two_actions", "0F0,0B0W0\n", "csv.trailing", "f, row 1, column 2: '0B0W0': 'W0' stands behind"},
        Malformed{"full_backward_of_old", "0F0,0BW0\n", "csv.old_notation",
                  "f, row 1, column 2: '0BW0': BW is the full backward of"},
        Malformed{"torch_2_4", "F0_s0,B0_s0\n", "csv.old_notation",
                  "f, row 1, column 1: 'F0_s0' is the notation of torch 2.4"},
        Malformed{"old_pair", "0F0,0B0,0W0\n", "csv.old_notation",
                  "f, row 1, column 3: 0W0: 0B0 did the full backward already"},
        Malformed{"no_microbatch", "0F0,0B\n", "csv.missing_microbatch",
                  "f, row 1, column 2: '0B': B needs a micro-batch"},
        Malformed{"stage_behind", "0F_s0\n", "csv.missing_microbatch",
                  "f, row 1, column 1: '0F_s0': F needs a micro-batch"},
        Malformed{"negative", "0F-1,0B0\n", "csv.missing_microbatch",
                  "f, row 1, column 1: '0F-1': F needs a micro-batch"},
        Malformed{"send_without_number", damaged(kComms, "0SEND_F0", "0SEND_F"), "csv.missing_microbatch",
                  "f, row 1, column 3: '0SEND_F': SEND_F needs a micro-batch"},
        Malformed{"number_on_unshard", damaged(kComms, "0UNSHARD", "0UNSHARD0"), "csv.unexpected_microbatch",
                  "f, row 1, column 1: '0UNSHARD0': UNSHARD has no micro-batch"},
        Malformed{"lower_case", "0f0\n", "csv.unknown_action",
                  "f, row 1, column 1: '0f0': expected STAGE ACTION [MICROBATCH]"},
        Malformed{"no_stage", "F0\n", "csv.unknown_action", "f, row 1, column 1: 'F0': expected STAGE"},
        Malformed{"word", "0FORWARD0\n", "csv.missing_microbatch",
                  "f, row 1, column 1: '0FORWARD0': F needs a micro-batch"},
        Malformed{"unknown", "0X0\n", "csv.unknown_action", "f, row 1, column 1: '0X0'"},
        Malformed{"binary", std::string("0F0,\x00\xff,0B0\n", 11), "csv.unknown_action",
                  "f, row 1, column 2: '\\x00\\xff'"},
        Malformed{"quotes", "\"0F0\",0B0\n", "csv.quotes", "f, row 1, column 1: the cell is quoted"},
        Malformed{"leading_zero", "00F0,0B0\n", "csv.digits",
                  "f, row 1, column 1: '00F0': the stage has leading zeros"},
        Malformed{"foreign_digits", "0F\xd9\xa0,0B0\n", "csv.digits",
                  "f, row 1, column 1: '0F\\xd9\\xa0': the digits of the micro-batch are not"},
        Malformed{"huge_stage", "99999999999F0\n", "csv.out_of_range",
                  "f, row 1, column 1: '99999999999F0': the stage is larger"},
        Malformed{"far_stage", "0F0,0B0\n2000000000F0,2000000000B0\n", "csv.missing_stage",
                  "f, row 2, column 1: the file speaks of stage 2000000000, but stage 1 stands nowhere"},
        Malformed{"huge_microbatch", "0F2000000000,0B2000000000\n", "verify.out_of_range",
                  "f, row 1, column 1: 0F2000000000: the file has 1 micro-batches"},
        Malformed{"renamed_microbatch", "0F0,0F7,0B0,0B7\n", "verify.out_of_range",
                  "f, row 1, column 2: 0F7: the file has 2 micro-batches"},
        Malformed{"mixed_line_ends", "0F0,0B0\r\n1F0,1B0\n", "csv.line_ends",
                  "f, row 2, column 1: the line ends with another"},
        Malformed{"stage_in_two_rows", "0F0,0B0\n1F0,1B0,0F1\n", "csv.stage_in_two_rows",
                  "f, row 2, column 3: 0F1: stage 0 stands in row 1 already"},
        Malformed{"gap", "0F0,0B0\n2F0,2B0\n", "csv.missing_stage",
                  "f, row 2, column 1: the file speaks of stage 2, but stage 1 stands nowhere"},
        Malformed{"no_forward", "0B0\n", "csv.no_forward", "f, row 1, column 1: the file holds no forward"},
        Malformed{"twice", "0F0,0F0,0B0\n", "verify.duplicate_op", "f, row 1, column 2: 0F0 stands twice"},
        Malformed{"backward_twice", "0F0,0B0,0I0,0W0\n", "verify.duplicate_op",
                  "f, row 1, column 3: 0I0: stage 0, micro-batch 0 has a backward already"},
        Malformed{"backward_first", "0B0,0F0\n", "verify.backward_before_forward",
                  "f, row 1, column 1: 0B0: backward before the forward"},
        Malformed{"weight_first", "0F0,0W0,0I0\n", "verify.weight_before_backward",
                  "f, row 1, column 2: 0W0: weight gradient before"},
        Malformed{"no_weight", "0F0,0I0\n", "verify.missing_weight_gradient",
                  "f, row 1, column 3: the row ends without 0W0"},
        Malformed{"no_backward", "0F0\n", "verify.missing_backward", "f, row 1, column 2: the row ends without 0B0"},
        Malformed{"forward_missing", "0F0,0F1,0B0,0B1\n1F0,1B0\n", "verify.missing_forward",
                  "f, row 2, column 3: the row ends without 1F1"},
        Malformed{"empty_compound", "0F0,()OVERLAP_F_B,0B0\n", "csv.compound",
                  "f, row 1, column 2: '()OVERLAP_F_B' has an empty part"},
        Malformed{"one_part", "(0F0)OVERLAP_F_B,0B0\n", "csv.compound",
                  "f, row 1, column 1: '(0F0)OVERLAP_F_B' has 1 parts; expected two"},
        Malformed{"three_parts", "(0F0;0I0;0W0)OVERLAP_F_B\n", "csv.compound",
                  "f, row 1, column 1: '(0F0;0I0;0W0)OVERLAP_F_B' has 3 parts"},
        Malformed{"open_compound", "(0F0;0B0\n", "csv.compound",
                  "f, row 1, column 1: '(0F0;0B0' has no closing bracket"},
        Malformed{"other_word", "(0F0;0B0)SEND_F\n", "csv.compound",
                  "f, row 1, column 1: a compound is closed by 'SEND_F'"},
        Malformed{"blank_in_compound", "(0F0; 0B0)OVERLAP_F_B\n", "csv.unknown_action", "f, row 1, column 1: ' 0B0'"},
        Malformed{"send_in_compound", "(0F0;0SEND_F0)OVERLAP_F_B\n", "csv.compound",
                  "f, row 1, column 1: 0SEND_F0 is in a compound"},
        Malformed{"idle_in_comms", damaged(kComms, "0F0,", "0F0,,"), "csv.idle_cell",
                  "f, row 1, column 3: an idle cell"},
        Malformed{"old_comms", std::string(kTransfersOnly), "csv.torch_version",
                  "f, row 1, column 2: 0SEND_F0 is never waited for, and the file holds no WAIT action at all"},
        Malformed{"new_comms",
                  std::string(kComms),
                  "csv.torch_version",
                  "f, row 1, column 6: 0WAIT_SEND_F0: torch 2.14 has no WAIT actions",
                  {.version = {2, 14}}},
        Malformed{"reduce_at_the_end_before_2_10",
                  "0F0,0B0,0REDUCE_GRAD\n",
                  "csv.torch_version",
                  "f, row 1, column 3: 0REDUCE_GRAD: torch 2.9 reduces behind the last action by itself",
                  {.version = {2, 9}}},
        Malformed{"send_from_last",
                  damaged(kComms, "1SEND_B0", "1SEND_B0,1SEND_F0"),
                  "csv.no_neighbour",
                  "f, row 2, column 6: 1SEND_F0: stage 1 is the last one",
                  {.checks = CsvChecks::kForVerifier}},
        Malformed{"recv_of_first", damaged(kComms, "0F0,", "0RECV_F0,0F0,"), "csv.no_neighbour",
                  "f, row 1, column 2: 0RECV_F0: stage 0 is the first one"},
        Malformed{"send_to_itself", "0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0,0WAIT_SEND_F0\n", "csv.no_neighbour",
                  "f, row 1, column 2: 0SEND_F0: stage 1 is on the same rank"},
        Malformed{"far_send", damaged(kComms, "0SEND_F0", "0SEND_F9"), "verify.out_of_range",
                  "f, row 1, column 3: 0SEND_F9: the file has 1 micro-batches"},
        Malformed{"send_without_recv", damaged(kComms, "1RECV_F0,", ""), "verify.send_without_receive",
                  "f, row 1, column 3: 0SEND_F0: no RECV takes it; expected 1RECV_F0"},
        Malformed{"recv_without_send", damaged(damaged(kComms, "0SEND_F0,", ""), "0WAIT_SEND_F0,", ""),
                  "verify.receive_without_send",
                  "f, row 2, column 2: 1RECV_F0: nothing is sent to it; expected 0SEND_F0"},
        Malformed{"send_twice", damaged(kComms, "0SEND_F0", "0SEND_F0,0SEND_F0"), "verify.duplicate_send",
                  "f, row 1, column 4: 0SEND_F0: stands twice"},
        Malformed{"recv_twice", damaged(kComms, "1RECV_F0", "1RECV_F0,1RECV_F0"), "verify.duplicate_receive",
                  "f, row 2, column 3: 1RECV_F0: stands twice"},
        Malformed{"no_wait", damaged(kComms, ",1WAIT_SEND_B0", ""), "verify.missing_wait_send",
                  "f, row 2, column 5: 1SEND_B0: expected 1WAIT_SEND_B0 behind it"},
        Malformed{"wait_first", damaged(damaged(kComms, ",0WAIT_SEND_F0", ""), "0SEND_F0", "0WAIT_SEND_F0,0SEND_F0"),
                  "verify.wait_without_send", "f, row 1, column 3: 0WAIT_SEND_F0: there is no such send before it"},
        Malformed{"wait_twice", damaged(kComms, "0WAIT_SEND_F0", "0WAIT_SEND_F0,0WAIT_SEND_F0"),
                  "verify.duplicate_wait_send", "f, row 1, column 7: 0WAIT_SEND_F0: stands twice"},
        Malformed{"no_reduce_wait", damaged(kComms, ",0WAIT_REDUCE_GRAD", ""), "verify.missing_wait_collective",
                  "f, row 1, column 7: 0REDUCE_GRAD: expected 0WAIT_REDUCE_GRAD"},
        Malformed{"no_reduce", damaged(kComms, "0REDUCE_GRAD,", ""), "verify.wait_without_collective",
                  "f, row 1, column 7: 0WAIT_REDUCE_GRAD: 0REDUCE_GRAD is not pending"}),
    [](const auto& malformed) { return std::string(malformed.param.name); });

TEST(TorchCsv, LeavesJudgementOfTransfersToTheVerifier) {
  for (const std::string_view removed : {"1RECV_F0,", "0RESHARD\n", "0REDUCE_GRAD,0WAIT_REDUCE_GRAD,", "1UNSHARD,"}) {
    const std::string text = damaged(kComms, removed, removed.ends_with('\n') ? "0F0\n" : "");
    EXPECT_EQ(round_trip(text, {.checks = CsvChecks::kForVerifier}), text);
  }
}

TEST(TorchCsv, SizesThatTheFileCannotFillAreRefused) {
  std::string text;
  for (int m = 0; m < 1500; ++m) text += (m > 0 ? ",0F" : "0F") + std::to_string(m);
  for (int s = 1; s < 1500; ++s) text += "," + std::to_string(s) + "F0";
  EXPECT_EQ(import_torch_csv(text + "\n", "f", {.checks = CsvChecks::kForm}).error().message,
            "f, row 1, column 1: 1500 stages x 1500 micro-batches: a file of this size cannot hold their actions");
}

TEST(TorchCsv, LenientReadingTakesWhatPyTorchTakesAndListsWhatItIgnored) {
  const TorchCsvOptions lenient{.reading = CsvReading::kLenient};
  const auto csv = import_torch_csv(
      " 0F0junk,\"00F01\",(0B0 ;)OVERLAP_F_B\r\n\t(1F0; 1B0)SEND_F,1F\xd9\xa1 ,()OVERLAP_F_B,(1B1)OVERLAP_F_B,0B1\n",
      "f", {.reading = CsvReading::kLenient, .checks = CsvChecks::kForm});
  ASSERT_FALSE(csv);  // 0B1 stands in the other row; PyTorch refuses that too
  EXPECT_EQ(csv.error().rule, "csv.stage_in_two_rows");
  const auto good = import_torch_csv(
      " 0F0junk,\"00F01\",(0B0 ;)OVERLAP_F_B,0B1W0\r\n\t(1F0; 1B0)SEND_F,1F\xd9\xa1 ,()OVERLAP_F_B,(1B1)OVERLAP_F_B\n",
      "f", lenient);
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_EQ(*export_torch_csv(std::get<Schedule>(good->content)),
            "0F0,0F1,0B0,0B1\r\n(1F0;1B0)OVERLAP_F_B,1F1,1B1\r\n");
  EXPECT_THAT(
      good->ignored,
      ElementsAre("f, row 1, column 1: '0F0junk': 'junk' stands behind the action",
                  "f, row 1, column 2: the cell is quoted; actions need no quotes",
                  "f, row 1, column 2: '00F01': the stage has leading zeros",
                  "f, row 1, column 2: '00F01': the micro-batch has leading zeros",
                  "f, row 1, column 3: '(0B0 ;)OVERLAP_F_B' has an empty part; expected (A;B)OVERLAP_F_B",
                  "f, row 1, column 3: '(0B0 ;)OVERLAP_F_B' has 1 parts; expected two",
                  "f, row 1, column 4: '0B1W0': 'W0' stands behind the action",
                  "f, row 2, column 1: the line ends with another sequence (LF or CRLF) than the lines before it",
                  "f, row 2, column 1: a compound is closed by 'SEND_F', expected OVERLAP_F_B behind the bracket",
                  "f, row 2, column 2: '1F\\xd9\\xa1': the digits of the micro-batch are not 0..9",
                  "f, row 2, column 3: '()OVERLAP_F_B' has an empty part; expected (A;B)OVERLAP_F_B",
                  "f, row 2, column 3: '()OVERLAP_F_B' has 0 parts; expected two",
                  "f, row 2, column 4: '(1B1)OVERLAP_F_B' has 1 parts; expected two"));
}

TEST(TorchCsv, RefusesToExportWhatTheFormatCannotExpress) {
  const auto schedule_of = [](std::string_view header, std::string_view rows) {
    const auto parsed = parse_text("plait 1 schedule\nranks 2\nmicrobatches 1\nlayers 2\n" + std::string(header) +
                                       "stage 1 norm.1..head @1\n" + std::string(rows),
                                   "s");
    EXPECT_TRUE(parsed) << parsed.error().message;
    return std::get<Schedule>(*parsed);
  };
  constexpr std::string_view kStage = "stage 0 embed..post.0 @0\n";
  constexpr std::string_view kRows = "rank 0: 0F0 0BW0\nrank 1: 1F0 1BW0\n";
  EXPECT_EQ(*export_torch_csv(schedule_of(kStage, kRows)), "0F0,0B0\n1F0,1B0\n");
  const struct {
    std::string header;
    std::string rows;
    std::string reason;
  } cases[] = {
      {"mode forward\n" + std::string(kStage), std::string(kRows), "forwards only"},
      {"slices 2\n" + std::string(kStage), std::string(kRows), "sequences are cut into 2 slices"},
      {"stage 0 embed..post.0 @0,1\n", std::string(kRows), "stage 0 has replicas on 2 ranks"},
      {"stage 0 embed..post.0 @1\n", std::string(kRows), "rank 0 holds no stage"},
      {std::string(kStage), "rank 0: 0F0 1BW0\nrank 1: 1F0 0BW0\n", "op 1BW0: stage 1 lives on rank 1"},
      {std::string(kStage), "rank 0: 0F0 0R0 0BW0\nrank 1: 1F0 1BW0\n", "op 0R0: recomputation"},
      {std::string(kStage), "rank 0: 0F0 0BW0 |\nrank 1: 1F0 1BW0\n", "turns"},
      {std::string(kStage), "rank 0: 0F0 send(stash,0,0)->1 0BW0\nrank 1: 1F0 1BW0\n",
       "a send that the schedule orders itself"},
      {std::string(kStage), "rank 0: 0F0 0BW0\nrank 1:\n", "a rank without any action"},
  };
  for (const auto& refused : cases) {
    const auto csv = export_torch_csv(schedule_of(refused.header, refused.rows));
    ASSERT_FALSE(csv) << refused.reason;
    EXPECT_EQ(csv.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(csv.error().rule, "csv.cannot_express");
    EXPECT_THAT(csv.error().message, HasSubstr(refused.reason));
  }
}

TEST(TorchCsv, RefusesToExportProgramsOfAnotherShape) {
  const auto imported = import_torch_csv(kComms, "f");
  const Program good = std::get<Program>(imported->content);
  const auto refusal = [](const Program& program) {
    const auto csv = export_torch_csv(program);
    return csv ? "exported" : csv.error().message;
  };
  Program program = good;
  const auto put_first = [&](const Instr& instr) {
    Row row{instr};
    for (const Instr& old : program.rows[0]) row.push_back(old);
    program.rows[0] = std::move(row);
  };
  program.rows[0].pop_back();
  EXPECT_THAT(refusal(program), HasSubstr("expected the all-reduce of the norm and the steps"));
  program = good;
  put_first(Collective{.kind = CollectiveKind::kAllGather, .ranks = RankSetId{2}, .value = Value::weight(GroupId{0})});
  EXPECT_THAT(refusal(program), HasSubstr("a collective over several pipeline ranks"));
  program = good;
  put_first(Send{.value = Value::stash(StageId{0}, {}, {}), .peer = RankId{1}});
  EXPECT_THAT(refusal(program), HasSubstr("a transfer of a stash"));
  program = good;
  put_first(Add{.group = GroupId{0}});
  EXPECT_THAT(refusal(program), HasSubstr("this add"));
  program = good;
  program.layout.groups[0].residency = Residency::kResident;
  EXPECT_THAT(refusal(program), HasSubstr("the weights of group stage.0 are resident"));
}

TEST(ScheduleFile, KnowsFormatsByTheirContents) {
  EXPECT_EQ(parse_schedule(kCompute, "x.plait")->format, FileFormat::kComputeOnly);
  EXPECT_EQ(parse_schedule(kComms, "x")->format, FileFormat::kComputeComms);
  const std::string text = "# words\n\n" + print_text(std::get<Schedule>(parse_schedule(kCompute, "x")->content));
  EXPECT_EQ(parse_schedule(text, "x.csv")->format, FileFormat::kText);
  EXPECT_EQ(parse_schedule("plait 7\n", "x.csv").error().rule, "text.syntax");
}

TEST(ScheduleFile, UnreadableFilesAreSaidToBe) {
  const auto missing = read_schedule_file("no/such/file.csv");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error(), (Error{.code = ErrorCode::kIo,
                                    .rule = "io.read",
                                    .message = "no/such/file.csv: cannot be read: No such file or directory"}));
  EXPECT_EQ(read_schedule_file("/").error().message, "/: cannot be read: Is a directory");
}

}  // namespace
}  // namespace plait
