#include "plait/cli/run/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <istream>
#include <memory>

namespace plait::cli {
namespace {

/// Reads {"steps": 400, "no-shuffle": true}.
class JsonConfig final : public CLI::Config {
 public:
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return {}; }

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    const auto document = nlohmann::ordered_json::parse(input, nullptr, /*allow_exceptions=*/false);
    if (!document.is_object()) throw CLI::ConfigError("the config file is no JSON object", CLI::ExitCodes::ConfigError);
    std::vector<CLI::ConfigItem> found;
    for (const auto& [key, value] : document.items()) {
      if (value.is_null()) continue;
      CLI::ConfigItem& item = found.emplace_back();
      item.name = key;
      item.inputs = {value.is_string() ? value.get<std::string>() : value.dump()};
    }
    return found;
  }
};

}  // namespace

FlagSet::FlagSet(const std::string& command, std::string summary)
    : app_(std::move(summary), command), command_(command) {
  app_.set_help_flag("--help", "print this")->group("General");
  app_.config_formatter(std::make_shared<JsonConfig>());
  app_.set_config("--config", "", "JSON file with values for these flags; a flag on the line goes before it")
      ->group("General")
      ->type_name("FILE");
  app_.allow_config_extras(false);
  app_.add_flag("--print-config", print_config_, "print the resolved configuration as JSON and stop")->group("General");
}

void FlagSet::add_switch(std::string_view group, const std::string& flag, bool& value, const std::string& help) {
  app_.add_flag(flag, value, help)->group(std::string(group));
  printers_.emplace_back(flag.substr(2), [&value] { return nlohmann::ordered_json(value); });
}

void FlagSet::add_optional_value(std::string_view group, const std::string& flag, std::string& value,
                                 const std::string& unit, const std::string& help) {
  CLI::Option* option = app_.add_option(flag, value, help)->group(std::string(group))->type_name(unit);
  option->expected(0, 1)->default_str("");
  printers_.emplace_back(flag.substr(2), [option, &value] {
    return option->count() > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  });
}

void FlagSet::add_choice(std::string_view group, const std::string& flag, std::string& value,
                         const std::vector<std::string>& choices, const std::string& help) {
  app_.add_option(flag, value, help)
      ->group(std::string(group))
      ->check(CLI::IsMember(choices))
      ->type_name(fmt::format("{}", fmt::join(choices, "|")))
      ->capture_default_str();
  printers_.emplace_back(flag.substr(2), [&value] { return nlohmann::ordered_json(value); });
}

Result<FlagSet::Outcome> FlagSet::parse(int argc, const char* const* argv) {
  // A flag given twice counts as given last, so that a script's line can be overridden behind its end.
  for (CLI::Option* option : app_.get_options()) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  try {
    app_.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app_.help().c_str(), stdout);
    return Outcome::kHelpPrinted;
  } catch (const CLI::FileError& e) {
    return make_error(ErrorCode::kIo, "flags.config", "{}: {}", command_, e.what());
  } catch (const CLI::ConfigError& e) {
    return make_error(ErrorCode::kIo, "flags.config", "{}: {}", command_, e.what());
  } catch (const CLI::ParseError& e) {
    return make_error(ErrorCode::kInvalidArgument, "flags", "{}: {}; see {} --help", command_, e.what(), command_);
  }
  return print_config_ ? Outcome::kConfigRequested : Outcome::kRun;
}

std::string FlagSet::config_json() const {
  nlohmann::ordered_json document = nlohmann::ordered_json::object();
  for (const auto& [key, value] : printers_) document[key] = value();
  return document.dump(2) + "\n";
}

}  // namespace plait::cli
