#pragma once

#include "plait/base/ids.h"
#include "plait/base/result.h"
#include "plait/run/engine/transport.h"
#include "plait/run/engine/wait_state.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

/// Ranks [begin, end) of a program.
struct RankRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  [[nodiscard]] bool contains(RankId rank) const { return begin <= rank.value() && rank.value() < end; }
  [[nodiscard]] std::int32_t size() const { return end - begin; }
  friend bool operator==(const RankRange&, const RankRange&) = default;
};

/// Ranks of process i of n: neighbours stay together, and the first (num_ranks mod n) processes have one rank more.
RankRange ranks_of_process(int process, int num_processes, int num_ranks);
/// The process of a rank under the same rule.
int process_of_rank(RankId rank, int num_processes, int num_ranks);

/// By rank, what is told by process.
std::vector<bool> ranks_of(const std::vector<bool>& processes, int num_ranks);

/// An error as bytes, for other processes.
std::string encode(const Error& error);
Error decode_error(std::string_view bytes);

/// A process that others must go on without.
struct LostProcess {
  enum class How : std::uint8_t {
    kGone,    ///< its connection ended
    kSilent,  ///< nothing came from it for too long
  };
  int process = 0;
  How how = How::kGone;
  std::string where;          ///< "process 2 (node7, pid 1234)"
  Clock::duration silence{};  ///< since the last sign of life
  friend bool operator==(const LostProcess&, const LostProcess&) = default;
};

/// A step that does not end, since a process keeps all from it.
struct Overdue {
  int process = 0;
  Error error;
};

/// What an engine shows the other processes while a step runs.
struct RankBoard {
  WaitTable* waits = nullptr;  ///< the group keeps those of other processes up to date
  RankRange here;
  std::function<Error(const LostProcess&)> explain;  ///< what the loss means for the step; from any thread
  std::function<void()> stop;                        ///< ends the step's waits; from any thread
  /// Whether a rank elsewhere keeps all from the end of the step, though no rank here waits for it. Asked by one thread.
  /// \param silent  by process, who gives no sign of life
  std::function<std::optional<Overdue>(const std::vector<bool>& silent)> overdue;
};

/// The processes of one job. Each runs some of the ranks of a program, as threads.
///
/// `open`, `meet`, `gather`, `broadcast`, `any` and `share` are calls of all processes, by one thread of each and in the same order. They
/// end early, with the failure, once any process has failed or is lost.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  [[nodiscard]] virtual int index() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Channels for one program, of which this process runs the ranks `here`.
  virtual Result<std::unique_ptr<Transport>> open(Routes routes, RankRange here) = 0;
  /// Returns when all processes have called it.
  virtual Result<> meet() = 0;
  /// Everyone's bytes by process, on process 0; nothing elsewhere.
  virtual Result<std::vector<std::string>> gather(std::string bytes) = 0;
  /// The bytes of process 0, on all.
  virtual Result<std::string> broadcast(std::string bytes) = 0;

  /// Whether any process says yes, on all.
  virtual Result<bool> any(bool mine) = 0;

  /// Zeroed memory that all have in common; the same size everywhere. It starts at a page.
  /// \errors kUnsupported "processes.share" where they do not live on one machine, or the system refuses
  virtual Result<std::shared_ptr<std::byte>> share(std::size_t size) = 0;

  /// Lays the states of ranks where processes of one machine see them at once, as far as that is possible. Before a step.
  virtual void lay_out(WaitTable& waits) = 0;
  /// While a board is shown, the other processes see how far the ranks are. Begins a step of the ranks' states. Every
  /// process shows one for each step of the job.
  virtual void show(std::shared_ptr<RankBoard> board) = 0;
  virtual void hide() = 0;

  /// Brings the states up to date: waits a moment for an answer of every other process, and tells by process who gave none.
  /// From any thread that is not the group's.
  virtual std::vector<bool> hear_all() = 0;
  /// A silent process is waited for in vain: it is lost, and `failure` tells so when this returns.
  virtual void give_up(int process) = 0;

  /// Tells all others that this process fails. Of several failures, the first one known to a process counts there.
  virtual void report(const Error& error) = 0;
  /// The first failure of any process, in words for this one.
  [[nodiscard]] virtual std::optional<Error> failure() const = 0;
};

}  // namespace plait
