#include "plait/cli/command.h"

#include "tests/cli/run_plait.h"
#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

#include <set>

namespace plait {
namespace {

void collect(const CLI::App& app, const std::string& path, std::string& text) {
  std::set<std::string> names;
  for (const CLI::Option* option : app.get_options()) names.insert(option->get_name(false, true));
  text += path + ":";
  for (const std::string& name : names) text += " " + name;
  text += "\n";
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    collect(*command, path + " " + command->get_name(), text);
}

/// People and scripts depend on these names. A change here is a change for them: say so in the commit.
TEST(Flags, AreTheFrozenList) {
  CLI::App app("", "plait");
  CommandBody chosen;
  add_commands(app, chosen);
  std::string flags;
  collect(app, "plait", flags);
  EXPECT_EQ(flags, read_text(PLAIT_SOURCE_DIR "/tests/data/cli/flags.txt"));
}

}  // namespace
}  // namespace plait
