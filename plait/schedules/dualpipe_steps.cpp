#include "plait/schedules/dualpipe_steps.h"

#include <deque>

namespace plait {
namespace {

enum class Backward { kFull, kSplit };

class RowWriter {
 public:
  explicit RowWriter(const DualPipeSteps& steps) : steps_(steps) {}

  void forward(int phase) { row_.push_back(steps_.op(OpKind::kForward, phase, forwards_[phase]++)); }
  void backward(int phase, Backward how) {
    const int index = backwards_[phase]++;
    if (how == Backward::kFull) {
      row_.push_back(steps_.op(OpKind::kBackward, phase, index));
      return;
    }
    row_.push_back(steps_.op(OpKind::kBackwardInput, phase, index));
    pending_weights_.push_back(steps_.op(OpKind::kBackwardWeight, phase, index));
  }
  void weight() {
    row_.push_back(pending_weights_.front());
    pending_weights_.pop_front();
  }
  /// F&B: a forward of one phase together with a backward of the other.
  void forward_and_backward(int forward_phase) {
    row_.push_back(Pair{});
    forward(forward_phase);
    backward(1 - forward_phase, Backward::kFull);
  }
  Row take() { return std::move(row_); }

 private:
  const DualPipeSteps& steps_;
  Row row_;
  int forwards_[2] = {0, 0};
  int backwards_[2] = {0, 0};
  std::deque<Op> pending_weights_;
};

}  // namespace

bool dualpipe_bubble_holds(int depth, const OpTimes& times) {
  if (times.forward == times.backward && times.backward == times.weight) return true;
  return depth <= 6 && times.weight <= times.forward && times.weight <= times.backward &&
         times.forward <= times.backward + times.weight && 5 * times.backward <= 6 * times.forward;
}

Row dualpipe_row(const DualPipeSteps& steps) {
  const int behind = steps.depth - steps.position - 1;  // ranks of the arm behind this one
  const int upto = steps.position + 1;                  // ranks of the arm up to and with this one
  const int steady = steps.num_microbatches - 2 * steps.depth + upto;
  RowWriter row(steps);
  // 1. F0
  for (int i = 0; i < 2 * behind; ++i) row.forward(0);
  // 2. F0 F1
  for (int i = 0; i < upto; ++i) row.forward(0), row.forward(1);
  // 3. B1 W F1: zero bubble at the start
  for (int i = 0; i < behind; ++i) row.backward(1, Backward::kSplit), row.weight(), row.forward(1);
  // 4. F0&B1 F1&B0: the main step. Where the arms meet, nothing hides the very first backward.
  for (int i = 0; i < steady; ++i) {
    if (i == 0 && behind == 0) {
      row.forward(0);
      row.backward(1, Backward::kFull);
    } else {
      row.forward_and_backward(0);
    }
    row.forward_and_backward(1);
  }
  // 5. B1 F1&B0
  for (int i = 0; i < behind; ++i) row.backward(1, Backward::kFull), row.forward_and_backward(1);
  // 6. B1 B0, split from the middle on; on even positions the B1 of the middle is still whole
  for (int i = 0; i < upto; ++i) {
    const int middle = upto / 2;
    const bool odd = steps.position % 2 == 1;
    row.backward(1, i > middle || (i == middle && odd) ? Backward::kSplit : Backward::kFull);
    row.backward(0, i >= middle ? Backward::kSplit : Backward::kFull);
  }
  // 7. W B0: zero bubble at the end
  for (int i = 0; i < behind; ++i) row.weight(), row.backward(0, Backward::kSplit);
  // 8. W
  for (int i = 0; i < upto; ++i) row.weight();
  return row.take();
}

}  // namespace plait
