#pragma once

#include "plait/base/result.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plait::cli {

/// The flags of one command: grouped help with unit and default in each line, --config FILE (JSON, keys are the flags
/// without dashes) and --print-config. Order: flag > config file > default.
///
///     std::int64_t steps = 400;
///     FlagSet flags("plait train", "Trains a model.");
///     flags.add("Optimizer", "--steps", steps, "updates", "updates in all");
///     PLAIT_TRY(const Parsed parsed, flags.parse(argc, argv));
class FlagSet {
 public:
  FlagSet(const std::string& command, std::string summary);

  /// `unit` stands where the value goes in the help: a unit, or the choices. A member of std::string that is empty has no
  /// default of its own; the help says what it then means.
  template <class T>
  void add(std::string_view group, const std::string& flag, T& value, const std::string& unit,
           const std::string& help) {
    CLI::Option* option = app_.add_option(flag, value, help)->group(std::string(group))->type_name(unit);
    bool has_default = true;
    if constexpr (std::is_same_v<T, std::string>) has_default = !value.empty();
    if (has_default) option->capture_default_str();
    printers_.emplace_back(flag.substr(2), [&value] { return nlohmann::ordered_json(value); });
  }
  /// A flag without value.
  void add_switch(std::string_view group, const std::string& flag, bool& value, const std::string& help);
  /// A flag that may stand without its value: then, too, `given` is true, and the value stays empty.
  void add_optional_value(std::string_view group, const std::string& flag, std::string& value, const std::string& unit,
                          const std::string& help);
  /// A value that must be one of `choices`.
  void add_choice(std::string_view group, const std::string& flag, std::string& value,
                  const std::vector<std::string>& choices, const std::string& help);

  /// For flags that other rooms add; `print` gives their value for --print-config.
  [[nodiscard]] CLI::App& app() { return app_; }
  void add_printer(const std::string& key, std::function<nlohmann::ordered_json()> print) {
    printers_.emplace_back(key, std::move(print));
  }

  [[nodiscard]] bool given(const std::string& flag) const { return app_.count(flag) > 0; }

  enum class Outcome { kRun, kHelpPrinted, kConfigRequested };
  /// Prints the help if it is asked for. \errors kInvalidArgument "flags" for what is unknown, lacks its value or is
  /// malformed; kIo "flags.config" for a config file that cannot be used
  Result<Outcome> parse(int argc, const char* const* argv);

  /// The resolved value of every flag.
  [[nodiscard]] std::string config_json() const;

 private:
  CLI::App app_;
  std::string command_;
  bool print_config_ = false;
  std::vector<std::pair<std::string, std::function<nlohmann::ordered_json()>>> printers_;
};

}  // namespace plait::cli
