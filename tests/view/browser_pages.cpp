#include "plait/view/html.h"

#include "tests/sim/simulated.h"

#include <fstream>
#include <iostream>

// Writes the pages that the browser test opens: a comparison, a measured step over a simulated one, one with its kernels, 100,000 ops.
namespace plait::test {
namespace {

Timeline drawn(const std::string& name, const ScheduleShape& shape, const std::string& times,
               const std::string& latency) {
  const Simulated run = simulate_schedule(name, shape, times, latency, {.detail = Detail::kTimeline});
  return make_timeline(run.program, run.result, name);
}

/// The simulated step as a run might have measured it: 3 % slower here and there.
Timeline measured_like(Timeline timeline) {
  timeline.title = "1f1b (measured)";
  timeline.origin = Origin::kMeasured;
  for (Bar& bar : timeline.bars) bar.end += (bar.end - bar.start) * (bar.microbatch % 3) / 33;
  timeline.memory.clear();
  timeline.memory_unit.clear();
  return timeline;
}

/// A part and a kernel in each op.
Timeline recorded_like(Timeline timeline) {
  timeline.title = "1f1b (kernels recorded)";
  timeline.origin = Origin::kMeasured;
  for (const Bar& bar : timeline.bars) {
    const std::int64_t quarter = (bar.end - bar.start) / 4;
    timeline.spans.push_back({.rank = bar.rank, .start = bar.start, .end = bar.end, .name = "post.0"});
    timeline.spans.push_back({.rank = bar.rank,
                              .start = bar.start + quarter,
                              .end = bar.end - quarter,
                              .kind = Span::Kind::kKernel,
                              .name = "gemm"});
  }
  return timeline;
}

}  // namespace
}  // namespace plait::test

int main(int argc, char** argv) {
  using namespace plait;
  using namespace plait::test;
  if (argc != 2) {
    std::cerr << "usage: plait_view_browser_pages DIR\n";
    return 2;
  }
  const std::string dir = argv[1];
  const auto write = [&](const std::string& name, const std::string& text) { std::ofstream(dir + "/" + name) << text; };
  const ScheduleShape shape{.ranks = 4, .microbatches = 8};
  const std::string times = "F=1,B=1.2,W=0.8";
  write("compare.html", draw_html({drawn("1f1b", shape, times, "0.2"), drawn("zb-h1", shape, times, "0.2"),
                                   drawn("zb-v", shape, times, "0.2")}));
  const Timeline plain = drawn("1f1b", shape, times, "0.2");
  write("measured.html", draw_html({plain, measured_like(plain)}));
  write("kernels.html", draw_html({recorded_like(plain), measured_like(plain)}));
  write("large.html", draw_html({drawn("1f1b", {.ranks = 64, .microbatches = 800}, times, "0.2")}));
  return 0;
}
