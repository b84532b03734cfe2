#include "tests/fuzz/properties.h"

#include "plait/base/check.h"
#include "plait/ir/text.h"
#include "plait/ir/torch_lowering.h"

namespace plait::fuzz {
namespace {

void check_error(const Error& error) {
  PLAIT_CHECK(!error.message.empty() && !error.rule.empty(), "an error without words");
}

Result<std::string> exported(const std::variant<Schedule, Program>& content, TorchVersion version) {
  if (const auto* schedule = std::get_if<Schedule>(&content)) return export_torch_csv(*schedule);
  return export_torch_csv(std::get<Program>(content), version);
}

}  // namespace

void check_text(std::string_view bytes) {
  const auto parsed = parse_text(bytes, "fuzz");
  if (!parsed) return check_error(parsed.error());
  const std::string text = std::visit([](const auto& held) { return print_text(held); }, *parsed);
  const auto again = parse_text(text, "again");
  PLAIT_CHECK(again, "{}", again.error().message);
  PLAIT_CHECK(*again == *parsed, "the text differs when it is read again");
}

void check_csv(std::string_view bytes) {
  for (const CsvReading reading : {CsvReading::kStrict, CsvReading::kLenient}) {
    for (const CsvChecks checks : {CsvChecks::kEverything, CsvChecks::kForVerifier, CsvChecks::kForm}) {
      for (const TorchVersion version : {TorchVersion{2, 15}, TorchVersion{2, 9}}) {
        const TorchCsvOptions options{.version = version, .reading = reading, .checks = checks};
        const auto csv = import_torch_csv(bytes, "fuzz", options);
        if (!csv) {
          check_error(csv.error());
          continue;
        }
        check_text(std::visit([](const auto& held) { return print_text(held); }, csv->content));
        const auto text = exported(csv->content, version);
        if (!text) {
          check_error(text.error());
          continue;
        }
        const auto again = import_torch_csv(*text, "fuzz", options);
        PLAIT_CHECK(again, "{}", again.error().message);
        PLAIT_CHECK(again->content == csv->content, "the CSV differs when it is read again");
        const auto* schedule = std::get_if<Schedule>(&csv->content);
        if (schedule == nullptr || checks != CsvChecks::kEverything) continue;
        const TorchLoweringOptions lowering{
            .defer_recv = true, .max_outstanding_sends = 1, .defer_reduce_grad_wait = true};
        const auto program = lower_as_torch(*schedule, lowering);
        if (!program) {
          check_error(program.error());
          continue;
        }
        PLAIT_CHECK(export_torch_csv(*program), "a lowered schedule is not exported");
      }
    }
  }
}

}  // namespace plait::fuzz
