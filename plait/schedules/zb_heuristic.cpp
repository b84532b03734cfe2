#include "plait/schedules/zb_heuristic.h"

#include "plait/schedules/common.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace plait {
namespace {

// Memory is counted in halves of a micro-batch.
constexpr int kForwardMemory = 2;
constexpr int kBackwardMemory = -1;
constexpr int kWeightMemory = -1;

struct Switches {
  bool early = false;   ///< warm-up stops before a forward that would end after the first gradient's arrival
  bool prio = false;    ///< hold a forward back when it would delay the backward
  bool greedy = false;  ///< fill any gap with a weight gradient, even if that delays the op that is waited for
};

struct StageState {
  int forwards = 0;
  int backwards = 0;
  int weights = 0;
  int memory = 0;
  Ticks clock = 0;
  Ticks waited = 0;  ///< by its ops after the first forward
  Ticks start = 0;
  Row row;
  std::vector<Ticks> forward_end;
  std::vector<Ticks> backward_end;

  [[nodiscard]] bool has_pending_weight() const { return weights < backwards; }
};

/// One run of the scheduler under one combination of the switches.
class Attempt {
 public:
  Attempt(int num_ranks, int num_microbatches, const OpTimes& times, int limit, Switches switches)
      : num_microbatches_(num_microbatches),
        times_(times),
        limit_(limit),
        switches_(switches),
        stages_(static_cast<std::size_t>(num_ranks)) {}

  /// The longest span of a stage; nothing if the limit cannot be kept.
  std::optional<Ticks> run() {
    warm_up();
    for (int i = 1; i < num_microbatches_ && feasible_; ++i) {
      const std::vector<bool> wants = wants_forward();
      for (std::size_t j = 0; j < stages_.size() && feasible_; ++j)
        if (wants[j]) steady_forward(j);
      for (std::size_t j = stages_.size(); j-- > 0 && feasible_;) steady_backward(j);
    }
    if (!feasible_) return std::nullopt;
    Ticks longest = 0;
    for (StageState& stage : stages_) {
      while (stage.has_pending_weight()) weight(stage);
      longest = std::max(longest, stage.clock - stage.start);
    }
    return longest;
  }

  std::vector<Row> take_rows() {
    std::vector<Row> rows;
    for (StageState& stage : stages_) rows.push_back(std::move(stage.row));
    return rows;
  }

 private:
  [[nodiscard]] bool is_last(std::size_t j) const { return j + 1 == stages_.size(); }
  [[nodiscard]] int stage_id(const StageState& stage) const { return static_cast<int>(&stage - stages_.data()); }

  void start_op(StageState& stage, Ticks arrival, Ticks duration) {
    const Ticks begin = std::max(stage.clock, arrival);
    if (stage.forwards == 0)
      stage.start = begin;
    else
      stage.waited += begin - stage.clock;
    stage.clock = begin + duration;
  }

  void weight(StageState& stage) {
    start_op(stage, stage.clock, times_.weight);
    stage.row.push_back(backward_weight(stage_id(stage), stage.weights++));
    stage.memory += kWeightMemory;
  }

  /// When the input of stage j's next forward is there; nothing if the stage before has not made it yet.
  [[nodiscard]] std::optional<Ticks> forward_arrival(std::size_t j) const {
    if (j == 0) return 0;
    const auto& ends = stages_[j - 1].forward_end;
    const auto next = static_cast<std::size_t>(stages_[j].forwards);
    if (next >= ends.size()) return std::nullopt;
    return ends[next] + times_.transfer;
  }
  [[nodiscard]] std::optional<Ticks> backward_arrival(std::size_t j) const {
    const auto next = static_cast<std::size_t>(stages_[j].backwards);
    const auto& ends = is_last(j) ? stages_[j].forward_end : stages_[j + 1].backward_end;
    if (next >= ends.size()) return std::nullopt;
    return ends[next] + (is_last(j) ? 0 : times_.transfer);
  }

  void run_forward(std::size_t j) {
    StageState& stage = stages_[j];
    const std::optional<Ticks> arrival = forward_arrival(j);
    feasible_ = feasible_ && arrival && stage.memory + kForwardMemory <= limit_;
    if (!feasible_) return;
    start_op(stage, *arrival, times_.forward);
    stage.row.push_back(forward(stage_id(stage), stage.forwards++));
    stage.forward_end.push_back(stage.clock);
    stage.memory += kForwardMemory;
  }
  void run_backward(std::size_t j) {
    StageState& stage = stages_[j];
    const std::optional<Ticks> arrival = backward_arrival(j);
    feasible_ = feasible_ && arrival;
    if (!feasible_) return;
    start_op(stage, *arrival, times_.backward);
    stage.row.push_back(backward_input(stage_id(stage), stage.backwards++));
    stage.backward_end.push_back(stage.clock);
    stage.memory += kBackwardMemory;
  }

  void make_room(StageState& stage, int memory) {
    while (stage.memory + memory > limit_ && feasible_) {
      feasible_ = stage.has_pending_weight();
      if (feasible_) weight(stage);
    }
  }

  [[nodiscard]] Ticks most_waited() const {
    Ticks most = 0;
    for (const StageState& stage : stages_) most = std::max(most, stage.waited);
    return most;
  }

  /// Fills the gap before an op whose input arrives at `arrival` with weight gradients.
  void fill(StageState& stage, Ticks arrival) {
    while (stage.has_pending_weight() && stage.clock + times_.weight <= arrival) weight(stage);
    // One more would end too late. It costs nothing as long as this stage has waited less than the worst one.
    if (!stage.has_pending_weight() || stage.clock >= arrival) return;
    if (switches_.greedy || arrival - stage.clock > most_waited() - stage.waited) weight(stage);
  }

  void warm_up() {
    for (std::size_t j = 0; j < stages_.size(); ++j) run_forward(j);
    if (!feasible_) return;
    // How many more forwards each stage can run before its first gradient arrives.
    std::vector<int> more(stages_.size(), 0);
    Ticks gradient = stages_.back().clock + times_.backward;
    for (std::size_t j = stages_.size() - 1; j-- > 0;) {
      const Ticks arrival = gradient + times_.transfer;
      int memory = stages_[j].memory;
      Ticks clock = stages_[j].clock;
      while (memory + kForwardMemory <= limit_ && more[j] + 1 < num_microbatches_ &&
             !(switches_.early ? clock + times_.forward > arrival : clock >= arrival)) {
        ++more[j];
        memory += kForwardMemory;
        clock += times_.forward;
      }
      gradient = std::max(clock, arrival) + times_.backward;
    }
    for (std::size_t j = 1; j < stages_.size(); ++j) more[j] = std::max(0, std::min(more[j], more[j - 1] - 1));
    for (std::size_t j = 0; j < stages_.size(); ++j)
      for (int i = 0; i < more[j]; ++i) run_forward(j);
    for (std::size_t j = stages_.size(); j-- > 0;) run_backward(j);
  }

  [[nodiscard]] bool wants_forward(std::size_t j) const {
    const StageState& stage = stages_[j];
    if (stage.forwards >= num_microbatches_) return false;
    if (!switches_.prio || is_last(j) || stage.forwards < stages_[j + 1].forwards + 2) return true;
    const Ticks next_backward = stages_[j + 1].clock + times_.forward + times_.backward + times_.transfer;
    if (stage.clock >= next_backward) return false;
    const int over = std::max(0, stage.memory + kForwardMemory - limit_);
    if (stage.clock + times_.forward + over * times_.weight <= next_backward) return true;
    return next_backward - stage.clock > most_waited() - stage.waited;
  }

  [[nodiscard]] std::vector<bool> wants_forward() const {
    std::vector<bool> wants(stages_.size());
    for (std::size_t j = stages_.size(); j-- > 0;) wants[j] = wants_forward(j) && (is_last(j) || wants[j + 1]);
    return wants;
  }

  void steady_forward(std::size_t j) {
    StageState& stage = stages_[j];
    make_room(stage, kForwardMemory);
    if (const auto arrival = forward_arrival(j); feasible_ && j > 0 && arrival) fill(stage, *arrival);
    if (feasible_) run_forward(j);
  }

  void steady_backward(std::size_t j) {
    StageState& stage = stages_[j];
    make_room(stage, kBackwardMemory);
    if (const auto arrival = backward_arrival(j); feasible_ && !is_last(j) && arrival) fill(stage, *arrival);
    if (j == 0 && stage.forwards == num_microbatches_)
      while (stage.has_pending_weight()) weight(stage);
    if (feasible_) run_backward(j);
  }

  int num_microbatches_;
  OpTimes times_;
  int limit_;
  Switches switches_;
  std::vector<StageState> stages_;
  bool feasible_ = true;
};

}  // namespace

Result<std::vector<Row>> zb_heuristic_order(int num_ranks, int num_microbatches, const OpTimes& times,
                                            int memory_limit) {
  std::optional<Ticks> best;
  std::vector<Row> rows;
  // True before false; a later combination wins only if it is strictly better.
  for (const bool early : {true, false}) {
    for (const bool prio : {true, false}) {
      for (const bool greedy : {true, false}) {
        Attempt attempt(num_ranks, num_microbatches, times, 2 * memory_limit,
                        Switches{.early = early, .prio = prio, .greedy = greedy});
        const std::optional<Ticks> longest = attempt.run();
        if (!longest || (best && *longest >= *best)) continue;
        best = longest;
        rows = attempt.take_rows();
      }
    }
  }
  if (!best)
    return make_error(ErrorCode::kInfeasible, "schedule.memory",
                      "no order of {} ranks keeps at most {} micro-batches of activations; raise the memory limit",
                      num_ranks, memory_limit);
  return rows;
}

}  // namespace plait
