#include "plait/ir/text.h"
#include "plait/verify/rules.h"
#include "plait/verify/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

namespace plait {
namespace {

namespace fs = std::filesystem;

/// A program of tests/error and what its head says about it: "# rule: ...", and where they count "# transfers: ...",
/// "# passes: ..." and "# limit: ...".
struct Case {
  std::string name;
  std::map<std::string, std::string> head;
  std::string text;
};

Case read_case(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  Case result{.name = path.stem().string(), .head = {}, .text = text.str()};
  std::string line;
  while (std::getline(text, line) && line.starts_with("# ")) {
    const auto colon = line.find(": ");
    if (colon != std::string::npos) result.head[line.substr(2, colon - 2)] = line.substr(colon + 2);
  }
  return result;
}

std::vector<Case> read_cases(const std::string& folder) {
  std::vector<Case> cases;
  for (const auto& entry : fs::directory_iterator(fs::path(PLAIT_SOURCE_DIR) / "tests" / "error" / folder))
    if (entry.path().extension() == ".plait") cases.push_back(read_case(entry.path()));
  std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.name < b.name; });
  return cases;
}

const std::map<std::string, TransferRule> kTransfers = {{"buffered", TransferRule::kBuffered},
                                                        {"bounded", TransferRule::kBounded},
                                                        {"rendezvous", TransferRule::kRendezvous}};

std::vector<Finding> findings_of(const Case& c, const std::string& transfers) {
  auto parsed = parse_text(c.text, c.name);
  EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
  if (!parsed) return {};
  VerifyOptions options{.transfers = kTransfers.at(transfers)};
  if (c.head.contains("limit")) {
    options.activation_limit.emplace();
    std::stringstream limits(c.head.at("limit"));
    for (std::string limit; std::getline(limits, limit, ',');) options.activation_limit->push_back(std::stoi(limit));
  }
  return std::visit([&](const auto& content) { return verify(content, options); }, *parsed);
}

std::set<std::string> rules_of(const std::vector<Finding>& findings) {
  std::set<std::string> rules;
  for (const Finding& f : findings) rules.insert(f.rule);
  return rules;
}

std::string words_of(const std::vector<Finding>& findings) {
  std::string words;
  for (const Finding& f : findings) words += "  [" + f.rule + "] " + f.message + "\n";
  return words;
}

void expect_rule_and_no_other(const Case& c) {
  SCOPED_TRACE(c.name);
  ASSERT_TRUE(c.head.contains("rule"));
  const std::string transfers = c.head.contains("transfers") ? c.head.at("transfers") : "buffered";
  const auto findings = findings_of(c, transfers);
  EXPECT_EQ(rules_of(findings), std::set{c.head.at("rule")}) << words_of(findings);
  for (const Finding& f : findings) EXPECT_GT(f.message.size(), 20U);
  if (!c.head.contains("passes")) return;
  std::stringstream passes(c.head.at("passes"));
  for (std::string rule; passes >> rule;) EXPECT_EQ(words_of(findings_of(c, rule)), "") << rule;
}

// Rules about what the text format cannot say; layout_findings_test.cpp has their programs.
const std::set<std::string> kNotInText = {"verify.layout", "verify.ranks", "verify.no_such_edge"};

TEST(ErrorCorpus, EachRuleFindsItsProgramAndNoOtherRuleDoes) {
  for (const Case& c : read_cases("")) {
    EXPECT_EQ(c.name, c.head.at("rule"));
    expect_rule_and_no_other(c);
  }
}

TEST(ErrorCorpus, EveryRuleHasAProgram) {
  std::set<std::string> expected;
  for (const RuleInfo& info : verify_rules())
    if (!kNotInText.contains(std::string(info.id))) expected.insert(std::string(info.id));
  std::set<std::string> found;
  for (const Case& c : read_cases("")) found.insert(c.name);
  EXPECT_EQ(found, expected);
}

TEST(ErrorCorpus, BugsOfTheFieldAreRejectedByTheRightRule) {
  const auto cases = read_cases("field");
  EXPECT_GE(cases.size(), 15U);
  for (const Case& c : cases) expect_rule_and_no_other(c);
}

TEST(ErrorCorpus, SoundProgramsHaveNoFinding) {
  for (const Case& c : read_cases("sound")) {
    for (const auto& [name, rule] : kTransfers) {
      // The loop receives in the order of the senders, which is what blocks under rendezvous.
      if (c.name == "loop" && rule == TransferRule::kRendezvous) continue;
      EXPECT_EQ(words_of(findings_of(c, name)), "") << c.name << " under " << name;
    }
  }
}

}  // namespace
}  // namespace plait
