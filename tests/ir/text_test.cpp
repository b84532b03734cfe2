#include "plait/ir/text.h"

#include "plait/ir/lower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace plait {
namespace {

constexpr std::string_view kSchedule = R"(plait 1 schedule
name "two"
mode train
ranks 2
microbatches 2
slices 1
layers 2
head untied
stage 0 embed..post.0 @0
stage 1 norm.1..head @1
group stage.0 parts embed..post.0 users 0 homes 0
group stage.1 parts norm.1..head users 1 homes 1

rank 0:
  0F0 0F1 . 0B0 0W0 0BW1

rank 1:
  & 1F0 1BW0 | 1F1 1BW1
)";

Op op(OpKind kind, int stage, int microbatch, int slice = 0) {
  return Op{.kind = kind, .stage = StageId{stage}, .microbatch = MicrobatchId{microbatch}, .slice = SliceId{slice}};
}

Schedule two_ranks() {
  auto layout = make_layout(LayoutSpec{.name = "two",
                                       .num_ranks = 2,
                                       .num_microbatches = 2,
                                       .num_layers = 2,
                                       .stages = *cut_by_layers(2, 2),
                                       .homes = {{RankId{0}}, {RankId{1}}}});
  using enum OpKind;
  return Schedule{
      .layout = *layout,
      .rows = {{op(kForward, 0, 0), op(kForward, 0, 1), Idle{}, op(kBackwardInput, 0, 0), op(kBackwardWeight, 0, 0),
                op(kBackward, 0, 1)},
               {Pair{}, op(kForward, 1, 0), op(kBackward, 1, 0), Turn{}, op(kForward, 1, 1), op(kBackward, 1, 1)}}};
}

/// Every instruction, every kind of value, several edges between two stages, odd names, a moving stage without weights.
Program everything() {
  Layout layout{.name = "a \"b\"\\\n\x01 é",
                .mode = Mode::kForward,
                .num_ranks = 4,
                .num_microbatches = 8,
                .num_slices = 3,
                .num_layers = 2,
                .tying = HeadTying::kTied,
                .newline = Newline::kCrlf};
  layout.stages = {
      Stage{.parts = {.begin = 0, .end = 3}, .homes = {RankId{0}, RankId{2}}, .groups = {GroupId{0}, GroupId{1}}},
      Stage{.parts = {.begin = 3, .end = 4}, .homes = {}, .groups = {}},
      Stage{.parts = {.begin = 4, .end = 10},
            .homes = {RankId{0}, RankId{1}, RankId{2}, RankId{3}},
            .groups = {GroupId{0}, GroupId{2}, GroupId{3}}}};
  layout.edges = {
      Edge{.producer = StageId{0}, .consumer = StageId{1}}, Edge{.producer = StageId{0}, .consumer = StageId{2}},
      Edge{.producer = StageId{0}, .consumer = StageId{2}}, Edge{.producer = StageId{1}, .consumer = StageId{2}}};
  layout.groups = {
      ParamGroup{.name = "embed", .parts = {0}, .users = {StageId{0}, StageId{2}}, .homes = {RankId{0}, RankId{3}}},
      ParamGroup{.name = "twice", .parts = {1, 2}, .users = {StageId{0}}, .homes = {RankId{0}, RankId{2}}},
      ParamGroup{.name = "twice",
                 .parts = {4, 5, 6, 8},
                 .users = {StageId{2}},
                 .homes = {RankId{1}},
                 .residency = Residency::kSharded},
      ParamGroup{.name = "odd name", .parts = {7, 9}, .users = {StageId{2}}, .homes = {RankId{1}}},
      ParamGroup{.name = "none", .parts = {}, .users = {}, .homes = {}}};
  layout.rank_sets = {{RankId{0}, RankId{1}, RankId{2}, RankId{3}}, {RankId{1}, RankId{3}}, {}};
  const MicrobatchId m{7};
  const SliceId q{2};
  const Value values[] = {Value::activation(EdgeId{0}, m, q),
                          Value::activation(EdgeId{1}, m, {}),
                          Value::gradient(EdgeId{2}, m, q),
                          Value::gradient(EdgeId{3}, m, {}),
                          Value::stash(StageId{1}, m, q),
                          Value::weight_stash(StageId{1}, m, q),
                          Value::kv(StageId{2}, m, q),
                          Value::kv_grad(StageId{2}, m, {}),
                          Value::weight(GroupId{0}),
                          Value::weight(GroupId{1}),
                          Value::weight_grad(GroupId{2}),
                          Value::weight_grad(GroupId{3}),
                          Value::norm()};
  Program program{.layout = layout, .rows = std::vector<Row>(4)};
  for (const Value& value : values) {
    program.rows[0].insert(program.rows[0].end(),
                           {Send{.value = value, .peer = RankId{1}}, Recv{.value = value, .peer = RankId{3}},
                            WaitSend{.value = value, .peer = RankId{1}}, Free{.value = value}});
    for (const CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
          CollectiveKind::kBroadcast, CollectiveKind::kReduce, CollectiveKind::kAllToAll}) {
      program.rows[1].push_back(Collective{.kind = kind, .ranks = RankSetId{1}, .root = RankId{0}, .value = value});
      program.rows[1].push_back(Collective{.kind = kind, .ranks = RankSetId{2}, .root = RankId{3}, .value = value});
      program.rows[1].push_back(WaitCollective{.kind = kind, .value = value});
    }
  }
  for (int g = 0; g < 5; ++g)
    program.rows[2].insert(program.rows[2].end(), {Add{.group = GroupId{g}}, Step{.group = GroupId{g}}});
  using enum OpKind;
  for (const OpKind kind : {kForward, kBackwardInput, kBackwardWeight, kBackward, kRecompute})
    program.rows[2].insert(program.rows[2].end(), {op(kind, 2, 7, 2), op(kind, 2147483647, 2147483647, 2147483647)});
  program.rows[2].insert(program.rows[2].end(), {Pair{}, Idle{}, Turn{}, Validate{}});
  return program;
}

TEST(Text, PrintsAScheduleAsDocumented) {
  EXPECT_EQ(print_text(two_ranks()), kSchedule);
}

TEST(Text, ReadsAScheduleAsDocumented) {
  const auto parsed = parse_text(kSchedule, "two.plait");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(std::get<Schedule>(*parsed), two_ranks());
}

TEST(Text, PrintsALoweredProgramAsDocumented) {
  const auto program = lower(two_ranks());
  ASSERT_TRUE(program) << program.error().message;
  const std::string text = print_text(*program);
  EXPECT_THAT(text, testing::StartsWith("plait 1 program\n"));
  EXPECT_THAT(
      text,
      testing::EndsWith(
          "set 0 0..1\n"
          "\nrank 0:\n"
          "  0F0 send(act,0>1,0)->1 recv(grad,0>1,0)<-1 0F1 send(act,0>1,1)->1 0B0 wait(send,act,0>1,0)->1 0W0\n"
          "  recv(grad,0>1,1)<-1 0BW1 wait(send,act,0>1,1)->1 all_reduce(norm)@0 wait(all_reduce,norm) step(stage.0)\n"
          "\nrank 1:\n"
          "  recv(act,0>1,0)<-0 & 1F0 1BW0 send(grad,0>1,0)->0 recv(act,0>1,1)<-0 | 1F1 1BW1 send(grad,0>1,1)->0\n"
          "  wait(send,grad,0>1,0)->0 wait(send,grad,0>1,1)->0 all_reduce(norm)@0 wait(all_reduce,norm) "
          "step(stage.1)\n"));
  const auto parsed = parse_text(text, "two.plait");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(std::get<Program>(*parsed), *program);
}

TEST(Text, RoundTripsEveryInstructionAndField) {
  const Program program = everything();
  const auto parsed = parse_text(print_text(program), "x");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(std::get<Program>(*parsed), program);
  const Schedule schedule{.layout = program.layout, .rows = program.rows};
  const auto again = parse_text(print_text(schedule), "x");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(std::get<Schedule>(*again), schedule);
}

TEST(Text, RoundTripsLayoutsWithoutEdgesAndGroups) {
  Schedule schedule = two_ranks();
  schedule.layout.edges.clear();
  schedule.layout.groups.clear();
  for (Stage& stage : schedule.layout.stages) stage.groups.clear();
  const auto parsed = parse_text(print_text(schedule), "x");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(std::get<Schedule>(*parsed), schedule);
}

TEST(Text, TakesCommentsBlankLinesCrlfAndDerivesGroups) {
  const auto parsed = parse_text(
      "# a comment\r\n\r\nplait 1 schedule # one more\r\nname \"two\"\r\nranks 2\r\nlayers 2\r\n"
      "microbatches 2\r\nstage 0 embed..post.0 @0\r\nstage 1 norm.1..head @1 # here\r\n"
      "rank 0: 0F0 0F1 .\r\n\t0B0 # W follows\r\n0W0 0BW1\r\n"
      "rank 1:\r\n& 1F0 1BW0 |\r\n1F1 1BW1",
      "two.plait");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(std::get<Schedule>(*parsed), two_ranks());
}

struct Malformed {
  std::string_view name;
  std::string text;
  std::string_view rule;
  std::string_view message;
};

/// kSchedule with one piece replaced.
std::string damaged(std::string_view piece, std::string_view by) {
  std::string text(kSchedule);
  const std::size_t at = text.find(piece);
  EXPECT_NE(at, std::string::npos) << piece;
  return text.replace(at, piece.size(), by);
}

class MalformedText : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedText, IsRefusedWithLineAndColumn) {
  const auto parsed = parse_text(GetParam().text, "f");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().message, GetParam().message);
  EXPECT_EQ(parsed.error().rule, GetParam().rule);
  EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidSchedule);
}

INSTANTIATE_TEST_SUITE_P(
    Table, MalformedText,
    testing::Values(
        Malformed{"empty", "", "text.syntax",
                  "f:1:1: expected 'plait 1 schedule' or 'plait 1 program', found the end of the file"},
        Malformed{"csv", "0F0,0B0\n", "text.syntax",
                  "f:1:1: expected 'plait 1 schedule' or 'plait 1 program', found '0F0,0B0'"},
        Malformed{"version", "plait 2 schedule\n", "text.syntax",
                  "f:1:7: expected version 1 of the format, which this Plait reads, found '2'"},
        Malformed{"kind", "plait 1 plan", "text.syntax", "f:1:9: expected schedule or program, found 'plan'"},
        Malformed{
            "key", damaged("mode train", "colour red"), "text.syntax",
            "f:3:1: expected 'rank 0:' or a line of the header (name, mode, ranks, microbatches, slices, layers, head, "
            "recompute, exchanges, steps, folds, newline, stage, edge, group, set), found 'colour'"},
        Malformed{"twice", damaged("mode train", "ranks 2\nranks 2"), "text.header",
                  "f:4:1: 'ranks' stands twice; remove one"},
        Malformed{"missing", damaged("microbatches 2\n", ""), "text.header",
                  "f:13:1: a 'microbatches' line is missing before this line"},
        Malformed{"huge_ranks", damaged("ranks 2", "ranks 2147483648"), "text.size",
                  "f:4:7: expected 1..316 ranks, found '2147483648'"},
        Malformed{"huge_number", damaged("ranks 2", "ranks 99999999999999999999"), "text.size",
                  "f:4:7: expected 1..326 ranks, found '99999999999999999999'"},
        Malformed{"huge_layers", damaged("layers 2", "layers 536870912"), "text.size",
                  "f:7:8: expected 1..65536 layers, found '536870912'"},
        Malformed{"huge_cells", damaged("microbatches 2", "microbatches 1000000"), "text.size",
                  "f:14:1: 2 stages x 1000000 micro-batches x 1 slices: a text of this size cannot hold their ops"},
        Malformed{"zero", damaged("slices 1", "slices 0"), "text.size", "f:6:8: expected 1..1048576 slices, found '0'"},
        Malformed{"no_number", damaged("slices 1", "slices"), "text.syntax",
                  "f:6:7: expected a number of slices, found the end of the line"},
        Malformed{"quote", damaged("\"two\"", "two"), "text.syntax",
                  "f:2:6: expected a name in double quotes, found 'two'"},
        Malformed{"unclosed", damaged("\"two\"", "\"two"), "text.syntax",
                  "f:2:10: expected the closing double quote, found the end of the line"},
        Malformed{"escape", damaged("\"two\"", "\"t\\n\""), "text.syntax",
                  "f:2:8: expected an escape: \\\", \\\\ or \\xNN, found '\\n\"'"},
        Malformed{"stage_order", damaged("stage 1 ", "stage 2 "), "text.syntax",
                  "f:10:7: expected stage 1, the next in order, found '2'"},
        Malformed{"part", damaged("norm.1..head", "norm.2..head"), "text.syntax",
                  "f:10:9: expected a part of layers 0..1, found 'norm.2..head'"},
        Malformed{"no_part", damaged("norm.1..head", "nose..head"), "text.syntax",
                  "f:10:9: expected a part: embed, norm.L, qkv.L, attn.L, post.L or head, found 'nose..head'"},
        Malformed{"backwards", damaged("norm.1..head", "head..norm.1"), "text.syntax",
                  "f:10:9: expected a first part that stands before the last one, found 'head..norm.1'"},
        Malformed{"home", damaged("head @1", "head @2"), "text.syntax",
                  "f:10:23: expected rank numbers below 2, found '2'"},
        Malformed{"no_home", damaged("head @1", "head"), "text.syntax",
                  "f:10:21: expected '@' and the stage's home ranks, found the end of the line"},
        Malformed{"descending", damaged("head @1", "head @1,0"), "text.syntax",
                  "f:10:25: expected ascending numbers, found '0'"},
        Malformed{"edge", damaged("group stage.0", "edge 0>2\ngroup stage.0"), "text.syntax",
                  "f:11:6: expected stages below 2, found '0>2'"},
        Malformed{"part_twice", damaged("norm.1..head users", "post.0..head users"), "text.header",
                  "f:12:21: part post.0 is in two groups"},
        Malformed{"user", damaged("users 1", "users 7"), "text.syntax",
                  "f:12:40: expected stage numbers below 2, found '7'"},
        Malformed{"more", damaged("mode train", "mode train now"), "text.syntax",
                  "f:3:12: expected the end of the line, found 'now'"},
        Malformed{"rank_order", damaged("rank 1:", "rank 2:"), "text.syntax",
                  "f:17:6: expected '1:', the next in order, found '2:'"},
        Malformed{"rank_missing", damaged("\nrank 1:\n  & ", ""), "text.syntax",
                  "f:17:1: expected 'rank 1:' (the header says ranks 2), found the end of the file"},
        Malformed{"rank_more", std::string(kSchedule) + "rank 2:\n", "text.syntax",
                  "f:19:6: expected no more ranks than the 2 of the header, found '2:'"},
        Malformed{"kind_of_op", damaged("0B0", "0X0"), "text.syntax", "f:15:14: expected F, B, W, BW or R, found 'X0'"},
        Malformed{"csv_kind", damaged("0B0", "0I0"), "text.syntax", "f:15:14: expected F, B, W, BW or R, found 'I0'"},
        Malformed{"microbatch", damaged("0B0", "0B"), "text.syntax",
                  "f:15:15: expected a micro-batch (a number), found the end of the token"},
        Malformed{"trailing", damaged("0B0", "0B0x"), "text.syntax",
                  "f:15:16: expected the end of the token, found 'x'"},
        Malformed{"overflow", damaged("0B0", "0B2147483648"), "text.syntax",
                  "f:15:15: expected a micro-batch (a number), found '2147483648'"},
        Malformed{"negative", damaged("0B0", "0B-1"), "text.syntax",
                  "f:15:15: expected a micro-batch (a number), found '-1'"},
        Malformed{
            "word", damaged("0B0", "sned(act,0>1,0)->1"), "text.syntax",
            "f:15:13: expected send, recv, wait, free, add, step, validate, batch or the name of a collective, found "
            "'sned(act,0>1,0)->1'"},
        Malformed{"arrow", damaged("0B0", "send(act,0>1,0)<-1"), "text.syntax",
                  "f:15:28: expected '->' and the peer's rank, found '<-1'"},
        Malformed{
            "value", damaged("0B0", "send(art,0>1,0)->1"), "text.syntax",
            "f:15:18: expected act, grad, stash, wstash, kv, kvgrad, weight, wgrad or norm, found 'art,0>1,0)->1'"},
        Malformed{"no_edge", damaged("0B0", "send(act,1>0,0)->1"), "text.syntax",
                  "f:15:22: expected an edge of the header, or #N where two stages have several, found '1>0,0)->1'"},
        Malformed{"edge_index", damaged("0B0", "send(act,#1,0)->1"), "text.syntax",
                  "f:15:22: expected an edge below #1, found '#1,0)->1'"},
        Malformed{"group", damaged("0B0", "step(embed)"), "text.syntax",
                  "f:15:18: expected the name of a group of the header, found 'embed)'"},
        Malformed{"set", damaged("0B0", "all_reduce(norm)@0"), "text.syntax",
                  "f:15:30: expected a rank set of the header (there are 0), found '0'"},
        Malformed{"root", damaged("rank 0:\n", "set 0 0..1\nrank 0:\nreduce(wgrad,stage.0)@0 "), "text.syntax",
                  "f:16:24: expected :root= and the root's rank, found the end of the token"},
        Malformed{"binary", damaged("0B0", std::string_view("\0\xff", 2)), "text.syntax",
                  "f:15:13: expected an op such as 3F7, one of . | &, or a word and its (...), found '\\x00\\xff'"}),
    [](const auto& malformed) { return std::string(malformed.param.name); });

}  // namespace
}  // namespace plait
