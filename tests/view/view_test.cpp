#include "plait/view/chrome_trace.h"
#include "plait/view/grid.h"
#include "plait/view/html.h"
#include "plait/view/svg.h"
#include "plait/view/timeline.h"

#include "tests/sim/simulated.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace plait::test {
namespace {

using ::testing::HasSubstr;

Timeline drawn(const std::string& name, const ScheduleShape& shape, const std::string& times = "F=1,B=1,W=1",
               const std::string& latency = "0") {
  const Simulated run = simulate_schedule(name, shape, times, latency, {.detail = Detail::kTimeline});
  return make_timeline(run.program, run.result, name);
}

TEST(Grid, LinesUpWithTime) {
  // 1F1B of two ranks and two micro-batches: F 1, BW 2; rank 1 starts one unit later.
  EXPECT_EQ(draw_grid(drawn("1f1b", {.ranks = 2, .microbatches = 2})),
            "rank 0  F0 F1 .  .  BW0-- .  BW1--\n"
            "rank 1  .  F0 BW0-- F1 BW1-- .  .\n");
}

TEST(Grid, SecondChunkIsLowerCase) {
  EXPECT_EQ(draw_grid(drawn("zb-v", {.ranks = 2, .microbatches = 1})),
            "rank 0  F0 .  .  f0 b0 w0 .  .  B0 W0\n"
            "rank 1  .  F0 f0 .  .  b0 w0 B0 W0 .\n");
}

TEST(Grid, SlicesShowBehindTheDot) {
  EXPECT_THAT(draw_grid(drawn("seq1f1b", {.ranks = 2, .microbatches = 1, .slices = 2})), HasSubstr("F0.0 F0.1"));
}

TEST(Grid, ColoursOnlyWhenAsked) {
  const Timeline timeline = drawn("1f1b", {.ranks = 2, .microbatches = 2});
  EXPECT_EQ(draw_grid(timeline).find('\x1b'), std::string::npos);
  EXPECT_THAT(draw_grid(timeline, {.colors = Colors::kAnsi}), HasSubstr("\x1b[30;48;5;74mF0\x1b[0m "));
}

TEST(Grid, LongStepsStayWithinTheWidth) {
  const std::string grid =
      draw_grid(drawn("1f1b", {.ranks = 4, .microbatches = 300}, "F=1.37,B=1.41,W=0.93"), {.most_columns = 120});
  std::size_t begin = 0;
  for (std::size_t end = grid.find('\n'); end != std::string::npos; begin = end + 1, end = grid.find('\n', begin))
    EXPECT_LE(end - begin, 8 + 120U);
}

TEST(Svg, IsWellFormedAndShowsEveryOp) {
  const Timeline timeline = drawn("1f1b", {.ranks = 2, .microbatches = 3});
  Timeline named = timeline;
  named.title = "a < b & \"c\"";
  const std::string svg = draw_svg({timeline, named});
  std::size_t ops = 0;
  for (std::size_t at = svg.find("<g><title>"); at != std::string::npos; at = svg.find("<g><title>", at + 1)) ++ops;
  EXPECT_EQ(ops, 2 * 2 * 3 * 2U);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_EQ(svg.rfind("</svg>\n"), svg.size() - 7);
}

TEST(Timelines, MarkExposedTransfers) {
  const Timeline timeline = drawn("1f1b", {.ranks = 2, .microbatches = 1}, "F=1,B=1,W=1", "0.5");
  // F 0..1, hop, F 1.5..2.5, BW 2.5..4.5, hop, BW 5..7; in ticks of a half.
  const auto u = [&](double units) {
    return static_cast<std::int64_t>(units * static_cast<double>(timeline.ticks_per_unit));
  };
  EXPECT_EQ(timeline.waits,
            (std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>>{{{u(4.5), u(5)}}, {{u(1), u(1.5)}}}));
}

TEST(Html, HoldsEverythingAndNoScriptCanBreakOut) {
  Timeline timeline = drawn("1f1b", {.ranks = 2, .microbatches = 2});
  timeline.title = "</script><b>\"x";
  const std::string page = draw_html({timeline, timeline});
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos);
  const std::size_t begin = page.find("const DATA = ") + 13;
  const auto data = nlohmann::json::parse(page.substr(begin, page.find("\n];", begin) + 2 - begin));
  EXPECT_EQ(data.size(), 2U);
  EXPECT_EQ(data.at(0).at("title"), timeline.title);
  EXPECT_EQ(data.at(0).at("bars").size(), 7 * timeline.bars.size());
  EXPECT_EQ(data.at(1).at("arrows").size(), 4 * timeline.arrows.size());
  EXPECT_EQ(data.at(1).at("memory").size(), 2U);
}

TEST(ChromeTrace, OpsMessagesAndCounters) {
  const Timeline timeline = drawn("1f1b", {.ranks = 2, .microbatches = 1}, "F=1,B=1,W=1", "0.5");
  const auto json = nlohmann::json::parse(chrome_trace({timeline}));
  std::map<std::string, int> phases;
  for (const auto& event : json.at("traceEvents")) ++phases[event.at("ph").get<std::string>()];
  EXPECT_EQ(phases, (std::map<std::string, int>{{"M", 3}, {"X", 4}, {"s", 2}, {"f", 2}, {"C", 5}}));
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("name") != "BW0" || event.at("tid") != 0) continue;
    EXPECT_EQ(event.at("ts"), 5.0);  // F 1, hop 0.5, F 1, BW 2, hop 0.5
    EXPECT_EQ(event.at("dur"), 2.0);
  }
}

TEST(MeasuredTraces, AreReadFromTheirFile) {
  const std::string text =
      R"({"format": "plait-trace", "version": 1, "schedule": "1f1b", "step": 4, "ranks": 2, "time_unit": "ns", "duration": 90,
    "bubble_ratio": 0.1, "bytes_moved": [8, 0],
    "ops": [{"rank": 0, "position": 0, "op": "0F0", "kind": "F", "stage": 0, "microbatch": 0, "slice": 0, "start": 10, "end": 20},
            {"rank": 1, "position": 1, "op": "1F0", "kind": "F", "stage": 1, "microbatch": 0, "slice": 0, "start": 25, "end": 50}],
    "transfers": [{"rank": 0, "position": 1, "kind": "send", "value": "activation", "peer": 1, "start": 20, "end": 22, "bytes": 8},
                  {"rank": 1, "position": 0, "kind": "recv", "value": "activation", "peer": 0, "start": 1, "end": 1, "bytes": 0}]})";
  Timeline expected{.title = "run",
                    .origin = Origin::kMeasured,
                    .ticks_per_unit = 1000000,
                    .unit = "ms",
                    .num_ranks = 2,
                    .makespan = 40,
                    .bubble_ratio = (40 - 17.5) / 40};
  expected.bars = {Bar{.rank = 0, .start = 0, .end = 10}, Bar{.rank = 1, .start = 15, .end = 40, .stage = 1}};
  expected.arrows = {Arrow{.from = 0, .to = 1, .sent = 10, .arrived = 12, .bytes = 8, .value = "activation"}};
  expected.waits.resize(2);
  EXPECT_EQ(read_trace(text, "run").value(), expected);
}

constexpr const char* kTraceWithKernels =
    R"({"format": "plait-trace", "version": 1, "schedule": "one", "step": 2, "ranks": 1, "time_unit": "ns", "duration": 9000,
    "bubble_ratio": 0, "bytes_moved": [0],
    "ops": [{"rank": 0, "position": 0, "op": "0F0", "kind": "F", "stage": 0, "microbatch": 0, "slice": 0, "start": 1000, "end": 5000}],
    "transfers": [],
    "parts": [{"rank": 0, "position": 0, "part": "embed", "start": 1000, "end": 2000},
              {"rank": 0, "position": 0, "part": "norm.0", "start": 2000, "end": 5000}],
    "kernels": [{"rank": 0, "position": -1, "kernel": "zero_grads", "start": 0, "end": 500},
                {"rank": 0, "position": 0, "part": "embed", "kernel": "embedding", "start": 1000, "end": 1500},
                {"rank": 0, "position": 0, "part": "norm.0", "kernel": "norm", "start": 2000, "end": 4000}]})";

TEST(MeasuredTraces, PartsAndKernelsAreSpansOuterFirst) {
  constexpr auto kKernel = Span::Kind::kKernel;
  const std::vector<Span> expected = {{.rank = 0, .start = -1000, .end = -500, .kind = kKernel, .name = "zero_grads"},
                                      {.rank = 0, .start = 0, .end = 1000, .name = "embed"},
                                      {.rank = 0, .start = 0, .end = 500, .kind = kKernel, .name = "embedding"},
                                      {.rank = 0, .start = 1000, .end = 4000, .name = "norm.0"},
                                      {.rank = 0, .start = 1000, .end = 3000, .kind = kKernel, .name = "norm"}};
  EXPECT_EQ(read_trace(kTraceWithKernels, "").value().spans, expected);
}

TEST(ChromeTrace, KernelsLieInTheirPartsAndThoseInTheirOps) {
  const auto json = nlohmann::json::parse(chrome_trace({read_trace(kTraceWithKernels, "").value()}));
  std::vector<std::string> slices;
  for (const auto& event : json.at("traceEvents"))
    if (event.at("ph") == "X")
      slices.push_back(event.at("cat").get<std::string>() + " " + event.at("name").get<std::string>() + " " +
                       event.at("ts").dump() + " " + event.at("dur").dump());
  EXPECT_EQ(slices, (std::vector<std::string>{"F F0 0 4", "kernel zero_grads -1 0.5", "part embed 0 1",
                                              "kernel embedding 0 0.5", "part norm.0 1 3", "kernel norm 1 2"}));
}

TEST(Html, NamesOfKernelsStandOnce) {
  const std::string page = draw_html({read_trace(kTraceWithKernels, "").value()});
  EXPECT_THAT(page, HasSubstr(R"("names":["zero_grads","embed","embedding","norm.0","norm"])"));
  EXPECT_THAT(page, HasSubstr(R"("spans":[[-1000,-500,1,0,0,1000,0,1,0,500,1,2,1000,4000,0,3,1000,3000,1,4]])"));
}

TEST(MeasuredTraces, DamagedFilesAreRefused) {
  for (
      const char* bad :
      {"", "[]", "{}", R"({"format": "plait-trace"})",
       R"({"format": "plait-trace", "ranks": 0, "ops": [], "transfers": []})",
       R"({"format": "plait-trace", "ranks": 1, "ops": [{"rank": 1, "kind": "F", "start": 0, "end": 1, "stage": 0, "microbatch": 0}], "transfers": []})",
       R"({"format": "plait-trace", "ranks": 1, "ops": [{"rank": "x"}], "transfers": []})",
       R"({"format": "plait-trace", "ranks": 1, "ops": [], "transfers": [], "kernels": [{"rank": 1, "kernel": "norm", "start": 0, "end": 1}]})",
       R"({"format": "plait-trace", "ranks": 1, "ops": [], "transfers": [], "parts": [{"rank": 0, "start": 0, "end": 1}]})"})
    EXPECT_EQ(read_trace(bad, "run").error().rule, "view.trace") << bad;
}

}  // namespace
}  // namespace plait::test
