#include "tools/validate/weight_passing.h"

#include "plait/base/files.h"

#include "tools/validate/weight_passing_setting.h"
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

namespace plait::validate {
namespace {

constexpr double kPercent = 100;
constexpr double kNominal = 1.25e9;  ///< bytes per second of one port of 10 Gbit/s

struct Judged {
  const Throughput* row = nullptr;
  double simulated = 0;
  [[nodiscard]] double error() const { return simulated / row->tokens_per_second - 1; }
};

/// Pairs of rows of one table, model and length whose order is the published one, and all such pairs.
struct Orders {
  int agree = 0;
  int all = 0;
  std::string wrong;
};

Orders orders_of(const std::vector<Judged>& judged, const std::string& table) {
  Orders orders;
  for (const Judged& a : judged) {
    for (const Judged& b : judged) {
      const bool one_setting = a.row->table == table && b.row->table == table && a.row->hidden == b.row->hidden &&
                               a.row->tokens == b.row->tokens;
      if (!one_setting || a.row->tokens_per_second <= b.row->tokens_per_second) continue;
      ++orders.all;
      if (a.simulated > b.simulated) {
        ++orders.agree;
        continue;
      }
      orders.wrong += fmt::format("{}{} over {} at H = {}, S = {}", orders.wrong.empty() ? "" : "; ", a.row->system,
                                  b.row->system, a.row->hidden, a.row->tokens);
    }
  }
  return orders;
}

/// The ablation's full TawPipe is the table's, but for the size that only the ablation has.
bool repeats_table(const Throughput& row) {
  constexpr std::int64_t kOnlyInAblation = 2048;
  return row.system == "full" && row.hidden != kOnlyInAblation;
}

/// Over the rows of a table, or of both.
double mean_error(const std::vector<Judged>& judged, std::optional<std::string> table) {
  double sum = 0;
  int count = 0;
  for (const Judged& j : judged) {
    if (j.row->fitted || (table && j.row->table != *table) || repeats_table(*j.row)) continue;
    sum += std::abs(j.error());
    ++count;
  }
  return kPercent * sum / std::max(1, count);
}

Result<std::vector<Judged>> judge(const std::vector<SimulatedRow>& rows, const Device& device,
                                  const SettingConstants& constants) {
  std::vector<Judged> judged;
  for (const SimulatedRow& row : rows) {
    PLAIT_TRY(const double simulated, row.tokens_per_second(device, constants));
    judged.push_back({.row = &row.row(), .simulated = simulated});
  }
  return judged;
}

std::string table_of(const std::vector<Judged>& judged, const std::string& table) {
  std::string text = "\n| system | H | S | published | simulated | error | |\n|---|---|---|---|---|---|---|\n";
  for (const Judged& j : judged)
    if (j.row->table == table)
      text +=
          fmt::format("| {} | {} | {} | {} | {:.0f} | {:+.1f} % | {} |\n", j.row->system, j.row->hidden, j.row->tokens,
                      j.row->tokens_per_second, j.simulated, kPercent * j.error(), j.row->fitted ? "fit" : "");
  return text;
}

std::string verdict(const std::vector<Judged>& judged, const std::string& table) {
  const Orders orders = orders_of(judged, table);
  std::string text = fmt::format("{} of {} orders agree", orders.agree, orders.all);
  if (!orders.wrong.empty()) text += fmt::format(" (not: {})", orders.wrong);
  return text + fmt::format(", mean absolute error {:.1f} % where nothing was fitted or told before",
                            mean_error(judged, table));
}

}  // namespace

Result<std::string> weight_passing(const std::string& data, const Device& device, WeightPassingConstants constants) {
  PLAIT_TRY(const std::vector<Throughput> published, read_throughputs(data));
  std::vector<SimulatedRow> rows;
  for (const Throughput& row : published) {
    PLAIT_TRY(SimulatedRow made, SimulatedRow::make(row));
    rows.push_back(std::move(made));
  }
  const std::string file = data + "/validation/weight-passing.json";
  if (constants == WeightPassingConstants::kFitted) {
    std::vector<const SimulatedRow*> fitted;
    for (const SimulatedRow& row : rows)
      if (row.row().fitted) fitted.push_back(&row);
    PLAIT_TRY(const SettingConstants found, fit_constants(fitted, device));
    PLAIT_TRY_VOID(write_file(file, constants_json(found)));
  }
  PLAIT_TRY(const SettingConstants used, read_constants(file));
  PLAIT_TRY(const std::vector<Judged> judged, judge(rows, device, used));
  SettingConstants one_port = used;
  one_port.network_bytes_per_second = kNominal;
  PLAIT_TRY(const std::vector<Judged> nominal, judge(rows, device, one_port));

  SettingConstants undisturbed = used;
  undisturbed.flat_tawpipe_slowdown = 1;
  PLAIT_TRY(const std::vector<Judged> alone, judge(rows, device, undisturbed));
  std::string flat;
  for (const Judged& j : alone)
    if (j.row->system == "no groups") flat += fmt::format("{}{:.0f}", flat.empty() ? "" : ", ", j.simulated);

  std::string text = fmt::format(
      "\n## Weight passing in its published setting\n\n"
      "Source: Wu & Chen 2025, arXiv:2511.09741, tables: tokens per second of a device on 3 nodes of 8 A100, NVLink "
      "inside, "
      "10 GbE\n"
      "between; 48 layers, 1536 sequences a step, full recompute. Every row is the program of the schedule of that "
      "name, "
      "step\n"
      "included, on the simulator's cluster; `tawpipe` with a group per node, `fsdp` gathered layer by layer.\n\n"
      "Six constants are fitted on five rows, one per system (`data/validation/weight-passing-fit.csv`; `make validate "
      "ARGS=--fit`):\n"
      "matrix products reach {:.2f} of the peak, half of that at H = {:.0f}; attention {:.2f}; a node's network {:.2f} "
      "GB/s; compute\n"
      "takes {:.2f} times as long in FSDP and {:.2f} times in TawPipe without groups. All else is kept from the A100 "
      "rows "
      "above.\n\n"
      "Table: {}.\nAblation of TawPipe: {}.\nBoth together: {:.1f} %.\n",
      used.gemm_efficiency, used.gemm_half_width, used.attention_efficiency, used.network_bytes_per_second / 1e9,
      used.fsdp_slowdown, used.flat_tawpipe_slowdown, verdict(judged, "main"), verdict(judged, "ablation"),
      mean_error(judged, {}));
  text += table_of(judged, "main");
  text += table_of(judged, "ablation");
  text += fmt::format(
      "\n`no groups` is `tawpipe --groups 1`: one group of all ranks, broadcasts and reductions over the slow links. "
      "`no "
      "overlap` is\n"
      "`--prefetch 0`: an op waits for weights that start to move when the op before it ends.\n\n"
      "What to know about these figures:\n\n"
      "* The size of a micro-batch is not in the source. 65,536 tokens are assumed (16, 8 and 4 sequences). One "
      "sequence "
      "of 16,384 tokens\n"
      "  is ruled out by the table itself: at H = 4096 FSDP would move 58 GB per node and round over the network, 46 s "
      "at "
      "1.25 GB/s, but\n"
      "  16,384 tokens at the published rate take 17 s.\n"
      "* With the 1.25 GB/s of one 10 GbE port a node, {}; TawPipe at H = 4096 would be at {:.0f} tokens/s. The "
      "published "
      "rates need about\n"
      "  twice that, so the nodes had more than one port's worth, or the program fetched further ahead than one step.\n"
      "* The two factors stand for what collectives of all ranks over the network take from the compute beside them; "
      "nothing in the\n"
      "  simulator makes them. Without its factor TawPipe without groups is at {} tokens/s at H = 1024, 2048, 4096: "
      "flat "
      "broadcasts run\n"
      "  as one perfect pipeline through the three nodes and save the group stagger, so the order of the two is that "
      "of "
      "the factor.\n",
      verdict(nominal, "main"),
      [&] {
        const auto row = std::find_if(nominal.begin(), nominal.end(), [](const Judged& j) {
          return j.row->system == "tawpipe" && j.row->hidden == 4096;
        });
        return row == nominal.end() ? 0 : row->simulated;
      }(),
      flat);
  return text;
}

}  // namespace plait::validate
