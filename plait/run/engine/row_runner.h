#pragma once

#include "plait/run/engine/messages.h"
#include "plait/run/engine/rank_worker.h"

#include <string>

namespace plait {

/// Interprets one rank's bound row once.
class RowRunner {
 public:
  RowRunner(RankWorker& worker, RankRun& run, const StepContext& context)
      : worker_(worker), run_(run), context_(context), transport_(*context.transport), row_(*run.row) {}

  Result<> run();

 private:
  // Each executes one instruction; false stops the row, with the error in failure_.
  bool execute(const BoundNothing&) { return true; }
  bool execute(const BoundOp& op);
  bool execute(const BoundSend& send);
  bool execute(const BoundReceive& receive);
  bool execute(const BoundWaitSent& wait);
  bool execute(const BoundGather& gather);
  bool execute(const BoundAwaitWeights& await) { return read_weights(await.weights); }
  bool execute(const BoundFree& free);
  bool execute(const BoundReduceGrad& reduce);
  bool execute(const BoundFinishGrad& finish);
  bool execute(const BoundReduceNorm& reduce);
  bool execute(const BoundFinishNorm& finish);
  bool execute(const BoundAdd& add) { return add_arrivals(add.arrivals); }
  bool execute(const BoundStep& step);
  bool execute(const BoundValidate& validate);

  bool forward(const BoundOp& op, const SliceData& data);
  bool recompute(const BoundOp& op, const SliceData& data);
  bool backward(const BoundOp& op, const SliceData& data);
  void note_loss(const BoundOp& op, const at::Tensor& loss);
  [[nodiscard]] const SliceData& data_of(const BoundOp& op) const {
    return (run_.data.empty() ? context_.data : run_.data)[static_cast<std::size_t>(op.data)];
  }
  bool end_row();
  void read_late_totals();

  bool take_input(const BoundOp& op, const std::vector<std::int64_t>& widths, const SliceData& data, Payload& input);
  void put_output(const BoundOp& op, Payload&& output);
  bool take_payload(const Source& source, const std::vector<std::int64_t>& widths, const SliceData& data,
                    Payload& payload);
  bool take_stash(const Source& source, Stash& stash);
  bool take_weight_stash(const Source& source, WeightStash& weight_stash);
  bool receive(TransferId transfer, Message& message);
  bool await_message(TransferId transfer, Message& message);
  bool read_weights(const FirstReads& reads);
  bool begin_contributions(int stage);
  void give_squares_late();
  bool finish_norm(CollectiveId collective);
  void update(GroupId group);
  void try_update(GroupId group);
  bool add_arrivals(const Arrivals& arrivals);
  bool send_weights(const BoundSend& send);
  bool send_gradient(const BoundSend& send);
  bool bring(TransferId transfer, RankGroup& group, std::vector<at::Tensor>& tensors);
  [[nodiscard]] const CollectiveRoute& route_of(CollectiveId id) const {
    return transport_.routes().collectives[static_cast<std::size_t>(id)];
  }
  void hand_over(TransferId transfer, Message&& message);

  /// What an instruction waits for, where it is one of these.
  struct Awaited {
    TransferId transfer = kAbsent;
    CollectiveId collective = kAbsent;
  };
  template <class Wait>
  bool await(RankId peer, Awaited awaited, const Wait& wait);
  bool await_collective(CollectiveId collective);
  bool fail(ErrorCode code, std::string_view rule, const std::string& what);
  /// Who is to blame for a wait that lasts too long.
  Error timed_out() const;
  [[nodiscard]] std::string where(RankId rank, std::size_t position) const;
  void compute_begins() { started_ = Clock::now(); }

  RankWorker& worker_;
  RankRun& run_;
  const StepContext& context_;
  Transport& transport_;
  const BoundRow& row_;
  std::size_t position_ = 0;
  Clock::time_point started_;  ///< of the current instruction
  Bytes moved_;                ///< by the current instruction
  Error failure_;

  /// A step that stands before the norm is known.
  struct Trial {
    GroupId group;
    enum class State : std::uint8_t { kStepped, kHeldBack } state = State::kStepped;
  };
  void judge(const Trial& trial);
  void judge_late(GroupId group);
  std::vector<Trial> trials_;
  /// This rank's own gradients say already that a step without the norm would not stand.
  bool holds_back_ = false;
};

}  // namespace plait
