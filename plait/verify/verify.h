#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plait {

/// How transfers behave while a program is replayed (DESIGN section 3).
enum class TransferRule : std::uint8_t {
  kBuffered,    ///< a Send never blocks; its wait blocks until the receive is posted
  kBounded,     ///< as buffered, with `buffers` slots per ordered pair of ranks; a Send blocks while all are taken (one
                ///< in a Batch needs none)
  kRendezvous,  ///< Send and Recv both block until matched; waits are ignored. A Batch never blocks: its readers and
                ///< waits do, until both ranks have posted theirs
};

struct VerifyOptions {
  TransferRule transfers = TransferRule::kBuffered;
  int buffers = 1;                                   ///< slots of kBounded
  std::optional<std::vector<int>> activation_limit;  ///< per rank: most live stashes allowed, F to BW or W, in ops
  int most_listed = 100;  ///< findings listed per rule; the last one says how many more there are
};

/// One thing that is wrong: stable rule id ("verify.backward_before_forward"), where, and a message in the words of
/// DESIGN section 8.
struct Finding {
  std::string rule;
  std::optional<RankId> rank;
  std::optional<int> position;  ///< index into the rank's row
  std::string message;          ///< where, op, expected against found, the fix
  friend bool operator==(const Finding&, const Finding&) = default;
};

/// Replays a program symbolically under one transfer rule and reports everything that is wrong; empty = proved.
/// Never modifies. Rule ids and their meanings: verify_rules() in rules.h.
///
/// Messages of one ordered pair of ranks and one kind of value meet in the order of sends and receives. Collectives are
/// entered without blocking under every rule and waited for by their wait or their first reader.
/// A finding that follows from another one about the same value is left out.
///
/// \cost  linear; some 40 bytes per instruction on top of the program
std::vector<Finding> verify(const Program& program, const VerifyOptions& options = {});

/// Lowers, then verifies; what lowering finds is a finding too.
std::vector<Finding> verify(const Schedule& schedule, const VerifyOptions& options = {});

/// A program that passed verify under buffered transfers. The executor takes nothing else.
class VerifiedProgram {
 public:
  [[nodiscard]] const Program& program() const { return program_; }

 private:
  friend Result<VerifiedProgram> prove(Program program);
  explicit VerifiedProgram(Program program) : program_(std::move(program)) {}
  Program program_;
};

/// \errors kInvalidSchedule with the first findings and how many there are
Result<VerifiedProgram> prove(Program program);

}  // namespace plait
