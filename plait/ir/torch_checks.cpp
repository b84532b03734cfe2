#include "plait/ir/torch_checks.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace plait {
namespace {

using enum TorchActionType;

constexpr std::uint8_t bit(TorchActionType type) {
  return static_cast<std::uint8_t>(1U << static_cast<unsigned>(type));
}

/// What stands in the file, per stage and micro-batch: one bit for each of F, I, W, B.
class OrderCheck {
 public:
  OrderCheck(const TorchSheet& sheet, const TorchShape& shape)
      : sheet_(sheet), shape_(shape), seen_(shape.homes.size() * static_cast<std::size_t>(shape.num_microbatches)) {}

  Result<> take(const TorchCell& cell) {
    const TorchAction& action = cell.action;
    std::uint8_t& seen = seen_[index(action.stage, action.microbatch)];
    const std::string name = to_string(action);
    const std::string of = fmt::format("stage {}, micro-batch {}", action.stage, action.microbatch);
    if ((seen & bit(action.type)) != 0)
      return fail(cell, "verify.duplicate_op", fmt::format("{} stands twice; remove one", name));
    const bool backward = action.type == kBackward || action.type == kBackwardInput;
    if (backward && (seen & (bit(kBackward) | bit(kBackwardInput))) != 0)
      return fail(cell, "verify.duplicate_op", fmt::format("{}: {} has a backward already; remove one", name, of));
    if (backward && (seen & bit(kForward)) == 0)
      return fail(cell, "verify.backward_before_forward",
                  fmt::format("{}: backward before the forward of {}; move {}F{} earlier", name, of, action.stage,
                              action.microbatch));
    if (action.type == kBackwardWeight && (seen & bit(kBackwardInput)) == 0) {
      if ((seen & bit(kBackward)) != 0)
        return fail(
            cell, "csv.old_notation",
            fmt::format(
                "{0}: {1}B{2} did the full backward already. In files before October 2024 B meant the gradient of "
                "the input only; write it as {1}I{2}",
                name, action.stage, action.microbatch));
      return fail(cell, "verify.weight_before_backward",
                  fmt::format("{}: weight gradient before the input gradient of {}; move {}I{} earlier", name, of,
                              action.stage, action.microbatch));
    }
    seen = static_cast<std::uint8_t>(seen | bit(action.type));
    return {};
  }

  Result<> finish() const {
    for (std::size_t s = 0; s < shape_.homes.size(); ++s) {
      const auto stage = static_cast<std::int32_t>(s);
      for (std::int32_t m = 0; m < shape_.num_microbatches; ++m) {
        const std::uint8_t seen = seen_[index(stage, m)];
        if ((seen & bit(kForward)) == 0)
          return missing(stage, "verify.missing_forward", fmt::format("{}F{}", stage, m));
        if ((seen & (bit(kBackward) | bit(kBackwardInput))) == 0)
          return missing(stage, "verify.missing_backward", fmt::format("{0}B{1} (or {0}I{1} and {0}W{1})", stage, m));
        if ((seen & bit(kBackwardInput)) != 0 && (seen & bit(kBackwardWeight)) == 0)
          return missing(stage, "verify.missing_weight_gradient", fmt::format("{}W{}", stage, m));
      }
    }
    return {};
  }

 private:
  [[nodiscard]] std::size_t index(std::int32_t stage, std::int32_t microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(shape_.num_microbatches) +
           static_cast<std::size_t>(microbatch);
  }
  [[nodiscard]] Error fail(const TorchCell& cell, std::string_view rule, std::string_view message) const {
    return cell_error(shape_.file_name, cell.place, rule, message);
  }
  [[nodiscard]] Error missing(std::int32_t stage, std::string_view rule, std::string_view what) const {
    const auto& row = sheet_.rows[static_cast<std::size_t>(shape_.homes[static_cast<std::size_t>(stage)])];
    CellPlace place = row.back().place;
    ++place.column;
    return cell_error(shape_.file_name, place, rule,
                      fmt::format("the row ends without {}; every stage works on micro-batches 0..{}", what,
                                  shape_.num_microbatches - 1));
  }

  const TorchSheet& sheet_;
  const TorchShape& shape_;
  std::vector<std::uint8_t> seen_;
};

}  // namespace

Result<> check_ranges(const TorchSheet& sheet, const TorchShape& shape, ActionOrder order) {
  OrderCheck ops(sheet, shape);
  for (const auto& row : sheet.rows) {
    for (const TorchCell& cell : row) {
      if (cell.role == CellRole::kIdle) continue;
      if (cell.action.microbatch >= shape.num_microbatches)
        return cell_error(
            shape.file_name, cell.place, "verify.out_of_range",
            fmt::format("{}: the file has {} micro-batches (the most forwards of a stage), numbered 0..{}",
                        to_string(cell.action), shape.num_microbatches, shape.num_microbatches - 1));
      if (order == ActionOrder::kChecked && is_compute(cell.action.type)) PLAIT_TRY_VOID(ops.take(cell));
    }
  }
  return order == ActionOrder::kChecked ? ops.finish() : Result<>();
}

Result<> check_transfers(const TorchSheet& sheet, const TorchShape& shape, WaitActions waits) {
  // One slot per edge, direction and micro-batch: where its SEND, RECV and WAIT_SEND stand.
  struct Transfer {
    std::optional<CellPlace> send;
    std::optional<CellPlace> recv;
    std::optional<CellPlace> wait;
  };
  const auto num_microbatches = static_cast<std::size_t>(shape.num_microbatches);
  std::vector<Transfer> transfers(shape.homes.size() * num_microbatches * 2);
  const auto slot = [&](const TorchAction& action) -> Transfer& {
    const TorchActionType type = action.type;
    const bool forward = type == kSendF || type == kRecvF || type == kWaitSendF;
    // The sender's stage names the transfer.
    const std::int32_t sender = type == kRecvF ? action.stage - 1 : type == kRecvB ? action.stage + 1 : action.stage;
    return transfers[(static_cast<std::size_t>(sender) * num_microbatches +
                      static_cast<std::size_t>(action.microbatch)) *
                         2 +
                     (forward ? 0 : 1)];
  };
  const auto fail = [&](const TorchCell& cell, std::string_view rule, std::string_view message) {
    return cell_error(shape.file_name, cell.place, rule, fmt::format("{}: {}", to_string(cell.action), message));
  };
  const auto last_stage = static_cast<std::int32_t>(shape.homes.size()) - 1;
  for (const auto& row : sheet.rows) {
    std::optional<TorchCell> pending;
    for (const TorchCell& cell : row) {
      const TorchAction& action = cell.action;
      switch (action.type) {
        case kSendF:
        case kSendB: {
          Transfer& transfer = slot(action);
          if (transfer.send) return fail(cell, "verify.duplicate_send", "stands twice; remove one");
          transfer.send = cell.place;
          break;
        }
        case kRecvF:
        case kRecvB: {
          if (action.stage == (action.type == kRecvF ? 0 : last_stage)) break;  // the import itself refuses it
          Transfer& transfer = slot(action);
          if (transfer.recv) return fail(cell, "verify.duplicate_receive", "stands twice; remove one");
          transfer.recv = cell.place;
          break;
        }
        case kWaitSendF:
        case kWaitSendB: {
          Transfer& transfer = slot(action);
          if (transfer.wait) return fail(cell, "verify.duplicate_wait_send", "stands twice; a send is waited for once");
          if (!transfer.send)
            return fail(cell, "verify.wait_without_send", "there is no such send before it in its row");
          transfer.wait = cell.place;
          break;
        }
        case kReduceGrad:
          if (waits == WaitActions::kAbsent) break;
          if (pending)
            return fail(cell, "verify.missing_wait_collective",
                        fmt::format("{} is not waited for yet; a rank has one reduction pending at most",
                                    to_string(pending->action)));
          pending = cell;
          break;
        case kWaitReduceGrad:
          if (!pending || pending->action.stage != action.stage)
            return fail(cell, "verify.wait_without_collective",
                        fmt::format("{}REDUCE_GRAD is not pending here", action.stage));
          pending.reset();
          break;
        default: break;
      }
    }
    if (pending)
      return fail(*pending, "verify.missing_wait_collective",
                  fmt::format("expected {}WAIT_REDUCE_GRAD behind it", pending->action.stage));
  }
  for (const auto& row : sheet.rows) {
    for (const TorchCell& cell : row) {
      const TorchAction& action = cell.action;
      const bool send = action.type == kSendF || action.type == kSendB;
      const bool recv = action.type == kRecvF || action.type == kRecvB;
      if ((!send && !recv) || (recv && action.stage == (action.type == kRecvF ? 0 : last_stage))) continue;
      if (send && action.stage == (action.type == kSendF ? last_stage : 0)) continue;
      const Transfer& transfer = slot(action);
      if (send && !transfer.recv)
        return fail(cell, "verify.send_without_receive",
                    fmt::format("no RECV takes it; expected {}{}{} in the row of that stage",
                                action.type == kSendF ? action.stage + 1 : action.stage - 1,
                                action.type == kSendF ? "RECV_F" : "RECV_B", action.microbatch));
      if (recv && !transfer.send)
        return fail(cell, "verify.receive_without_send",
                    fmt::format("nothing is sent to it; expected {}{}{} in the row of that stage",
                                action.type == kRecvF ? action.stage - 1 : action.stage + 1,
                                action.type == kRecvF ? "SEND_F" : "SEND_B", action.microbatch));
      if (send && waits == WaitActions::kPresent && !transfer.wait)
        return fail(cell, "verify.missing_wait_send",
                    fmt::format("expected {}WAIT_{}{} behind it in its row", action.stage, to_string(action.type),
                                action.microbatch));
    }
  }
  return {};
}

}  // namespace plait
