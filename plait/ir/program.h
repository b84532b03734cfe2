#pragma once

#include "plait/base/ids.h"
#include "plait/base/result.h"
#include "plait/ir/instr.h"
#include "plait/ir/parts.h"

#include <string>
#include <vector>

namespace plait {

/// A contiguous run of parts. `homes` are the ranks that hold its weights (several for replicas),
/// ascending; none where it owns no weights, and its ops may then stand on any rank.
struct Stage {
  PartRange parts;
  std::vector<RankId> homes;
  std::vector<GroupId> groups;  ///< parameter groups it uses, ascending; derived by make_layout
  friend bool operator==(const Stage&, const Stage&) = default;
};

/// An activation edge. Chains have one edge per pair of neighbours, and edge i leaves stage i.
struct Edge {
  StageId producer;
  StageId consumer;
  friend bool operator==(const Edge&, const Edge&) = default;
};

enum class Residency : std::uint8_t {
  kResident,  ///< every home holds the whole weight, ready to use
  kSharded,  ///< every home holds one shard; the whole must be gathered before use and freed after, the gradient reduced
};

/// Parameters that are stepped together. All contributions to its gradient (user stage x micro-batch x slice) are summed
/// exactly once before its Step, which stands on every home.
struct ParamGroup {
  std::string name;            ///< "embed", "stage.3", "qkv.3"
  std::vector<int> parts;      ///< chain indices whose parameters it holds, ascending
  std::vector<StageId> users;  ///< stages that read it, ascending (a tied embedding has two)
  std::vector<RankId> homes;   ///< ranks that hold it and its optimizer state, ascending
  Residency residency = Residency::kResident;
  friend bool operator==(const ParamGroup&, const ParamGroup&) = default;
};

enum class Mode : std::uint8_t {
  kTrain,    ///< forward, backward, step
  kForward,  ///< forwards only: evaluation, serving
};
/// What a recompute makes again, and so what the forward before it keeps (recompute.h).
enum class Recompute : std::uint8_t {
  kNone,         ///< no R stands; one that does counts as kFull
  kFull,         ///< F keeps the stage's inputs, R runs the whole forward again
  kNoAttention,  ///< F also keeps each attention's output and log-sum-exp, R runs all but the attention again
};
/// How lowering places sends and receives.
enum class Exchanges : std::uint8_t {
  kOneWay,  ///< a receive is posted when the value is made
  kSwaps,   ///< what two ranks send each other is swapped in batches where the order allows it (lower.h)
};
/// How lowering places the optimizer steps.
enum class StepOrder : std::uint8_t {
  kBehindNorm,     ///< every step waits for the norm over all ranks
  kPostValidated,  ///< a rank steps as soon as its own gradients are complete, and validates behind the norm
};
enum class HeadTying : std::uint8_t { kUntied, kTied };
enum class Newline : std::uint8_t { kLf, kCrlf };

/// What a schedule is about, before any order: sizes, stages, edges, parameter groups.
struct Layout {
  std::string name;  ///< the schedule's name, or the file's stem
  Mode mode = Mode::kTrain;
  int num_ranks = 1;
  int num_microbatches = 1;
  int num_slices = 1;
  int num_layers = 1;
  HeadTying tying = HeadTying::kUntied;
  Recompute recompute = Recompute::kNone;
  Exchanges exchanges = Exchanges::kOneWay;
  StepOrder steps = StepOrder::kBehindNorm;
  int folds =
      1;  ///< micro-batches that a rank works on in turn, equal m mod folds being one fold; swaps keep to a fold
  std::vector<Stage> stages;
  std::vector<Edge> edges;
  std::vector<ParamGroup> groups;
  std::vector<std::vector<RankId>> rank_sets;  ///< member lists of collectives, each ascending
  Newline newline = Newline::kLf;              ///< line ends of the CSV it came from, kept for export

  [[nodiscard]] int num_stages() const { return static_cast<int>(stages.size()); }
  /// Edges that enter or leave a stage (linear in the number of edges except for chains, where it is constant).
  [[nodiscard]] std::vector<EdgeId> edges_into(StageId stage) const;
  [[nodiscard]] std::vector<EdgeId> edges_out_of(StageId stage) const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// Ops and routes in order, as a system writes them; transfers that follow from the data flow are not in it yet.
struct Schedule {
  Layout layout;
  std::vector<Row> rows;  ///< one per rank
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// A schedule after lowering: every transfer, collective, free and optimizer step is an instruction.
struct Program {
  Layout layout;
  std::vector<Row> rows;  ///< one per rank
  friend bool operator==(const Program&, const Program&) = default;
};

/// Sizes and cut of a schedule, from which make_layout derives edges and groups.
struct LayoutSpec {
  std::string name;
  Mode mode = Mode::kTrain;
  int num_ranks = 1;
  int num_microbatches = 1;
  int num_slices = 1;
  int num_layers = 1;
  HeadTying tying = HeadTying::kUntied;
  std::vector<PartRange> stages;           ///< must cut the chain of num_layers layers, in order
  std::vector<std::vector<RankId>> homes;  ///< per stage; empty only for stages of attention alone
};

/// Derives chain edges and parameter groups: the parameters of a stage form the group "stage.S"; with a tied head the
/// token table forms the group "embed", used by the stages of embed and head.
///
/// \errors kInvalidArgument if a size is not positive, the stages do not cut the chain, a home is out of range,
///         or a stage with weights has none
Result<Layout> make_layout(const LayoutSpec& spec);

/// Cuts L layers into S stages: floor(L/S) layers each and one more for the first L mod S; embed goes with the first
/// stage, head with the last (DESIGN section 7). Demands 1 <= S <= L.
Result<std::vector<PartRange>> cut_by_layers(int num_layers, int num_stages);

/// Adds a rank set (ascending, no duplicates) unless it is there; returns its id.
RankSetId intern_rank_set(Layout& layout, std::vector<RankId> ranks);

/// The same schedule for a model of `num_layers` layers with or without a tied head: stages are cut anew by layers and
/// groups derived again; the order of ops stays. For schedules from files, which know stages only.
Result<Schedule> rebind(const Schedule& schedule, int num_layers, HeadTying tying);

}  // namespace plait
