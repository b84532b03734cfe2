#include "plait/cli/command.h"
#include "plait/cli/schedule_source.h"
#include "plait/ir/lower.h"
#include "plait/verify/verify.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <memory>

namespace plait {
namespace {

struct Options {
  std::string source;
  std::string format = "table";
  std::string transfers = "buffered";
  int buffers = 1;
  ScheduleFlags flags;
  CsvFlags csv;
};

struct Verdict {
  std::string transfers;
  std::vector<Finding> findings;
};

constexpr std::array kRules = {std::pair{"buffered", TransferRule::kBuffered},
                               std::pair{"bounded", TransferRule::kBounded},
                               std::pair{"rendezvous", TransferRule::kRendezvous}};

/// All three verdicts. What lowering finds is a finding, and the same under every rule.
std::vector<Verdict> judge(ScheduleOrProgram content, VerifyOptions options) {
  std::vector<Verdict> verdicts;
  const auto program = lowered(content);
  for (const auto& [name, rule] : kRules) {
    options.transfers = rule;
    verdicts.push_back(
        {.transfers = name,
         .findings = program ? verify(*program, options) : verify(std::get<Schedule>(content), options)});
  }
  return verdicts;
}

std::string as_table(const LoadedSchedule& loaded, const std::vector<Verdict>& verdicts, int buffers) {
  const Layout& layout = loaded.layout();
  std::string text = fmt::format("{}: {} ranks, {} micro-batches, {} slices, {} stages\n", layout.name,
                                 layout.num_ranks, layout.num_microbatches, layout.num_slices, layout.num_stages());
  for (const Verdict& verdict : verdicts) {
    const std::string slots = verdict.transfers == "bounded" ? fmt::format(" ({} per pair of ranks)", buffers) : "";
    text +=
        fmt::format("{:<12}{}{}\n", verdict.transfers,
                    verdict.findings.empty() ? "proved" : fmt::format("{} findings", verdict.findings.size()), slots);
  }
  // A finding that stands under several rules is printed once, with all of them.
  std::vector<std::pair<Finding, std::string>> merged;
  for (const Verdict& verdict : verdicts) {
    for (const Finding& finding : verdict.findings) {
      const auto same =
          std::find_if(merged.begin(), merged.end(), [&](const auto& entry) { return entry.first == finding; });
      if (same == merged.end()) {
        merged.emplace_back(finding, verdict.transfers);
      } else {
        same->second += ", " + verdict.transfers;
      }
    }
  }
  for (const auto& [finding, under] : merged)
    text += fmt::format("{}: {} [{}]\n", under, finding.message, finding.rule);
  return text;
}

std::string as_json(const LoadedSchedule& loaded, const std::vector<Verdict>& verdicts) {
  nlohmann::ordered_json json = {{"name", loaded.layout().name}};
  for (const Verdict& verdict : verdicts) {
    nlohmann::ordered_json findings = nlohmann::ordered_json::array();
    for (const Finding& finding : verdict.findings) {
      nlohmann::ordered_json entry = {
          {"rule", finding.rule}, {"rank", nullptr}, {"position", nullptr}, {"message", finding.message}};
      if (finding.rank) entry["rank"] = finding.rank->value();
      if (finding.position) entry["position"] = *finding.position;
      findings.push_back(std::move(entry));
    }
    json["verdicts"][verdict.transfers] = {{"proved", verdict.findings.empty()}, {"findings", std::move(findings)}};
  }
  return json.dump(2) + "\n";
}

Result<int> run(const Options& options) {
  if (options.buffers < 1)
    return make_error(ErrorCode::kInvalidArgument, "flags.buffers", "--buffers {}: at least 1 is needed",
                      options.buffers);
  PLAIT_TRY(const TorchCsvOptions csv, resolve_csv(options.csv));
  PLAIT_TRY(const LoadedSchedule loaded, load_schedule(options.source, options.flags, csv));
  VerifyOptions verify_options{.buffers = options.buffers};
  if (options.flags.memory_limit) {
    const Layout& layout = loaded.layout();
    const int stashes = *options.flags.memory_limit * (layout.num_stages() / layout.num_ranks) * layout.num_slices;
    verify_options.activation_limit = std::vector<int>(static_cast<std::size_t>(layout.num_ranks), stashes);
  }
  const std::vector<Verdict> verdicts = judge(loaded.content, verify_options);
  PLAIT_TRY_VOID(
      print_out(options.format == "json" ? as_json(loaded, verdicts) : as_table(loaded, verdicts, options.buffers)));
  const auto asked = std::find_if(verdicts.begin(), verdicts.end(),
                                  [&](const Verdict& verdict) { return verdict.transfers == options.transfers; });
  return asked->findings.empty() ? 0 : 1;
}

}  // namespace

void add_check_command(CLI::App& parent, CommandBody& chosen) {
  CLI::App* command = parent.add_subcommand("check", "prove a schedule or program, or say all that is wrong with it");
  const auto options = std::make_shared<Options>();
  command->add_option("schedule", options->source, "NAME or FILE")->required();
  command->add_option("--format", options->format, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  command
      ->add_option("--transfers", options->transfers,
                   "rule that the exit code follows: buffered, bounded or rendezvous")
      ->check(CLI::IsMember({"buffered", "bounded", "rendezvous"}))
      ->capture_default_str();
  command->add_option("--buffers", options->buffers, "slots per ordered pair of ranks, for bounded")
      ->capture_default_str();
  add_schedule_flags(*command, options->flags);
  add_csv_flags(*command, options->csv);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace plait
