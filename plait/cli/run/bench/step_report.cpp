#include "plait/cli/run/bench/step_report.h"

#include "plait/base/table.h"
#include "plait/base/units.h"
#include "plait/cli/run/bench/samples.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

namespace plait::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e9;
constexpr double kSecondsPerNano = 1e-9;
constexpr std::string_view kFlopsFormula =
    "3 * (2 * weight_matrix_elements * tokens + 4 * layers * heads * head_size * visible_query_key_pairs)";

double seconds(Nanos nanos) {
  return static_cast<double>(nanos.value()) * kSecondsPerNano;
}

std::string percent(double ratio) {
  return fmt::format("{:.1f}", 100 * ratio);
}

std::string milliseconds(Nanos nanos) {
  return fmt::format("{:.2f}", seconds(nanos) * 1e3);
}

double ratio(Nanos part, Nanos whole) {
  return whole.value() == 0 ? 0 : seconds(part) / seconds(whole);
}

/// Billions of operations per second; zero for what has none.
double gflops(std::int64_t flops, Nanos time) {
  return time.value() == 0 ? 0 : static_cast<double>(flops) / seconds(time) / kGiga;
}

std::vector<double> tokens_per_second(const StepBench& bench) {
  std::vector<double> rates;
  for (const double time : bench.seconds) rates.push_back(static_cast<double>(bench.tokens_per_step) / time);
  return rates;
}

/// Sums of all ranks.
struct Sums {
  Nanos duration;
  std::map<std::pair<PartKind, OpKind>, Breakdown::PartTotal> parts;
  std::map<KernelKind, Breakdown::KernelTotal> kernels;
};

Sums sums_of(const std::vector<Breakdown>& ranks) {
  Sums sums;
  for (const Breakdown& rank : ranks) {
    sums.duration += rank.duration;
    for (const Breakdown::PartTotal& part : rank.parts) {
      Breakdown::PartTotal& sum = sums.parts[{part.part, part.op}];
      sum.part = part.part;
      sum.op = part.op;
      sum.count += part.count;
      sum.time += part.time;
      sum.in_kernels += part.in_kernels;
    }
    for (const Breakdown::KernelTotal& kernel : rank.kernels) {
      Breakdown::KernelTotal& sum = sums.kernels[kernel.kernel];
      sum.kernel = kernel.kernel;
      sum.count += kernel.count;
      sum.time += kernel.time;
      sum.flops += kernel.flops;
    }
  }
  return sums;
}

Json rank_json(const Breakdown& rank) {
  Json entry{{"step_s", seconds(rank.duration)},
             {"begin_s", seconds(rank.begin)},
             {"waiting_s", seconds(rank.waiting)},
             {"uncovered_s", seconds(rank.uncovered)},
             {"covered_ratio", rank.covered_ratio()},
             {"instructions", Json::array()},
             {"parts", Json::array()},
             {"kernels", Json::array()},
             {"gemms", Json::array()}};
  for (const auto& instr : rank.instrs)
    entry["instructions"].push_back({{"kind", instr.kind},
                                     {"count", instr.count},
                                     {"time_s", seconds(instr.time)},
                                     {"in_kernels_s", seconds(instr.in_kernels)}});
  for (const auto& part : rank.parts)
    entry["parts"].push_back({{"part", to_string(part.part)},
                              {"op", to_string(part.op)},
                              {"count", part.count},
                              {"time_s", seconds(part.time)},
                              {"in_kernels_s", seconds(part.in_kernels)}});
  for (const auto& kernel : rank.kernels)
    entry["kernels"].push_back({{"kernel", to_string(kernel.kernel)},
                                {"count", kernel.count},
                                {"time_s", seconds(kernel.time)},
                                {"flops", kernel.flops}});
  for (const auto& gemm : rank.gemms)
    entry["gemms"].push_back({{"kernel", to_string(gemm.kernel)},
                              {"rows", gemm.shape.rows},
                              {"inputs", gemm.shape.inputs},
                              {"outputs", gemm.shape.outputs},
                              {"count", gemm.count},
                              {"time_s", seconds(gemm.time)}});
  return entry;
}

Json products_json(const GemmReplay& gemm) {
  Json list = Json::array();
  for (const GemmReplay::Product& product : gemm.products()) {
    const auto flops = static_cast<double>(product.step.shape.flops());
    const double in_step = seconds(product.step.time) / static_cast<double>(product.step.count);
    list.push_back({{"rank", product.rank},
                    {"kernel", to_string(product.step.kernel)},
                    {"rows", product.step.shape.rows},
                    {"inputs", product.step.shape.inputs},
                    {"outputs", product.step.shape.outputs},
                    {"count", product.step.count},
                    {"gflops_alone", flops / median(product.seconds) / kGiga},
                    {"gflops_from_memory", flops / median(product.seconds_in_memory) / kGiga},
                    {"gflops_in_step", flops / in_step / kGiga}});
  }
  return list;
}

}  // namespace

Json breakdown_json(const std::vector<Breakdown>& ranks) {
  Json list = Json::array();
  for (const Breakdown& rank : ranks) list.push_back(rank_json(rank));
  return list;
}

std::string breakdown_tables(const std::vector<Breakdown>& ranks) {
  std::string out;
  TextTable of_ranks({{"rank", Align::kRight},
                      {"what"},
                      {"count", Align::kRight},
                      {"ms", Align::kRight},
                      {"% of step", Align::kRight},
                      {"% in kernels", Align::kRight}});
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Breakdown& rank = ranks[r];
    const auto row = [&](const std::string& what, const std::string& count, Nanos time, const std::string& inside) {
      of_ranks.add_row(
          {std::to_string(r), what, count, milliseconds(time), percent(ratio(time, rank.duration)), inside});
    };
    for (const auto& instr : rank.instrs)
      row(instr.kind, std::to_string(instr.count), instr.time,
          instr.is_transfer ? "" : percent(ratio(instr.in_kernels, instr.time)));
    row("begin", "", rank.begin, "");
    row("waiting", "", rank.waiting, "");
    row("not covered", "", rank.uncovered, "");
  }
  out += of_ranks.print();
  const Sums sums = sums_of(ranks);
  TextTable of_parts({{"part"},
                      {"op"},
                      {"count", Align::kRight},
                      {"ms", Align::kRight},
                      {"% of step", Align::kRight},
                      {"% in kernels", Align::kRight}});
  for (const auto& [key, part] : sums.parts)
    of_parts.add_row({std::string(to_string(part.part)), std::string(to_string(part.op)), std::to_string(part.count),
                      milliseconds(part.time), percent(ratio(part.time, sums.duration)),
                      percent(ratio(part.in_kernels, part.time))});
  out += '\n' + of_parts.print();
  TextTable of_kernels({{"kernel"},
                        {"count", Align::kRight},
                        {"ms", Align::kRight},
                        {"% of step", Align::kRight},
                        {"us each", Align::kRight},
                        {"GF/s", Align::kRight}});
  for (const auto& [kind, kernel] : sums.kernels)
    of_kernels.add_row({std::string(to_string(kind)), std::to_string(kernel.count), milliseconds(kernel.time),
                        percent(ratio(kernel.time, sums.duration)),
                        fmt::format("{:.1f}", seconds(kernel.time) * 1e6 / static_cast<double>(kernel.count)),
                        kernel.flops > 0 ? fmt::format("{:.1f}", gflops(kernel.flops, kernel.time)) : ""});
  out += '\n' + of_kernels.print();
  return out;
}

Json step_json(const StepBench& bench, Json setup) {
  Json document = std::move(setup);
  document["tokens_per_step"] = bench.tokens_per_step;
  document["step_s"] = figures_of(bench.seconds, Better::kLower);
  document["step_s"]["each"] = bench.seconds;
  document["tokens_per_s"] = figures_of(tokens_per_second(bench), Better::kHigher);
  const double rate = bench.model_flops / median(bench.seconds);
  document["model_flops"] = bench.model_flops;
  document["flops_formula"] = kFlopsFormula;
  document["gflops"] = rate / kGiga;
  const auto rates = [&](GemmReplay::Operands where) {
    std::vector<double> each = bench.gemm->rates(where);
    for (double& value : each) value /= kGiga;
    return figures_of(each, Better::kHigher);
  };
  document["gemm_gflops"] = rates(GemmReplay::Operands::kInCaches);
  document["gemm_gflops_from_memory"] = rates(GemmReplay::Operands::kInMemory);
  document["gemm_flops"] = bench.gemm->flops();
  document["share_of_gemm_rate"] = rate / median(bench.gemm->rates());
  document["share_of_gemm_rate_weight_products"] =
      bench.gemm->flops() / median(bench.seconds) / median(bench.gemm->rates());
  document["bubble_ratio"] = median(bench.bubbles);
  document["peak_bytes"] = Json::array();
  for (const Bytes bytes : bench.peak_bytes) document["peak_bytes"].push_back(bytes.value());
  document["peak_resident_bytes"] = bench.peak_resident.value();
  document["losses"] = bench.losses;
  document["grad_norms"] = bench.grad_norms;
  document["products"] = products_json(*bench.gemm);
  document["breakdown"] = breakdown_json(bench.breakdown);
  return document;
}

std::string step_tables(const StepBench& bench) {
  std::string out;
  const auto line = [&](std::string_view name, const std::string& value) {
    out += fmt::format("{:<20} {}\n", name, value);
  };
  const std::vector<double> tokens = tokens_per_second(bench);
  const double rate = bench.model_flops / median(bench.seconds);
  const double gemm_rate = median(bench.gemm->rates());
  line("tokens/s", fmt::format("{:.1f} median, {:.1f} best, {:.1f} % spread, of {} steps of {} tokens", median(tokens),
                               *std::max_element(tokens.begin(), tokens.end()), 100 * spread(tokens), tokens.size(),
                               bench.tokens_per_step));
  line("step", fmt::format("{:.4f} s median", median(bench.seconds)));
  line("GF/s", fmt::format("{:.2f} = {:.4g} model FLOP / step: {}", rate / kGiga, bench.model_flops, kFlopsFormula));
  line("GEMM rate",
       fmt::format("{:.2f} GF/s median, {:.2f} best: the step's own weight products alone, operands in the "
                   "caches; {:.2f} from memory",
                   gemm_rate / kGiga, *std::max_element(bench.gemm->rates().begin(), bench.gemm->rates().end()) / kGiga,
                   median(bench.gemm->rates(GemmReplay::Operands::kInMemory)) / kGiga));
  line("share of GEMM rate", fmt::format("{:.1f} %; counting weight products alone {:.1f} %", 100 * rate / gemm_rate,
                                         100 * bench.gemm->flops() / median(bench.seconds) / gemm_rate));
  line("bubble", fmt::format("{:.2f} %", 100 * median(bench.bubbles)));
  std::vector<std::string> peaks;
  for (const Bytes bytes : bench.peak_bytes) peaks.push_back(print_bytes(bytes));
  line("peak memory", fmt::format("{} per rank; {} of the process resident", fmt::join(peaks, ", "),
                                  print_bytes(bench.peak_resident)));
  std::vector<std::string> losses;
  for (const double loss : bench.losses) losses.push_back(fmt::format("{:.6f}", loss));
  line("losses", fmt::format("{}", fmt::join(losses, " ")));
  double covered = 1;
  for (const Breakdown& rank : bench.breakdown) covered = std::min(covered, rank.covered_ratio());
  line("accounted for", fmt::format("{:.2f} % of the step that recorded its kernels ({:.4f} s)", 100 * covered,
                                    seconds(bench.recorded.duration)));
  return out + '\n' + breakdown_tables(bench.breakdown);
}

}  // namespace plait::bench
