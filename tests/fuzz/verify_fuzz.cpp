#include "plait/ir/text.h"
#include "plait/verify/verify.h"

#include "tests/verify/reference_interpreter.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <variant>

/// Whatever the text parser accepts, the verifier judges without a crash; and a program that it lets through finishes and
/// leaves nothing over by the reference interpreter.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plait;
  const auto parsed = parse_text(std::string_view(reinterpret_cast<const char*>(data), size), "input");
  if (!parsed) return 0;
  for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous}) {
    const auto findings =
        std::visit([&](const auto& content) { return verify(content, {.transfers = rule}); }, *parsed);
    const Program* program = std::get_if<Program>(&*parsed);
    if (program == nullptr || !findings.empty()) continue;
    const testing::Meaning meaning = testing::interpret(*program);
    if (meaning.end != testing::Meaning::End::kFinished || !meaning.leaks.empty()) std::abort();
  }
  return 0;
}
