#include "plait/ir/torch_cells.h"
#include "plait/ir/torch_csv.h"
#include "plait/ir/torch_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace plait {
namespace {

using enum TorchActionType;

void append(std::string& out, std::int32_t number) {
  char digits[12];
  out.append(digits, std::to_chars(std::begin(digits), std::end(digits), number).ptr);
}

void append(std::string& out, TorchActionType type, StageId stage, MicrobatchId microbatch) {
  append(out, stage.value());
  out += to_string(type);
  if (has_microbatch(type)) append(out, microbatch.value());
}

TorchActionType type_of(OpKind kind) {
  switch (kind) {
    case OpKind::kForward: return kForward;
    case OpKind::kBackwardInput: return kBackwardInput;
    case OpKind::kBackwardWeight: return kBackwardWeight;
    case OpKind::kBackward:
    case OpKind::kRecompute: return kBackward;
  }
  return kBackward;
}

void append(std::string& out, const Op& op) {
  append(out, type_of(op.kind), op.stage, op.microbatch);
}

void append_pair(std::string& out, const Op& first, const Op& second) {
  out += '(';
  append(out, first);
  out += ';';
  append(out, second);
  out += ")OVERLAP_F_B";
}

std::string_view line_end(Newline newline) {
  return newline == Newline::kCrlf ? "\r\n" : "\n";
}

/// Writes the rows of a program that has the shape of compute_comms.
class CommsWriter {
 public:
  CommsWriter(const Program& program, TorchVersion version)
      : program_(program), layout_(program.layout), version_(version) {
    // What the import would append behind each row.
    tails_.layout = program.layout;
    tails_.rows.resize(program.rows.size());
    torch_rules::append_implicit(tails_, torch_rules::Reductions::kInRows);
    tails_with_reductions_.layout = program.layout;
    tails_with_reductions_.rows.resize(program.rows.size());
    torch_rules::append_implicit(tails_with_reductions_, torch_rules::Reductions::kImplicit);
  }

  Result<std::string> run() {
    for (std::size_t rank = 0; rank < program_.rows.size(); ++rank) {
      const Row& row = program_.rows[rank];
      const std::optional<std::size_t> end = end_of_actions(rank);
      if (!end)
        return refuse(rank, row.size(),
                      "expected the all-reduce of the norm and the steps of the rank's stages as the end of the row, "
                      "which PyTorch leaves to the optimizer");
      bool first = true;
      for (std::size_t at = 0; at < *end; ++at) {
        cell_.clear();
        PLAIT_TRY_VOID(cell(rank, at));
        if (cell_.empty()) continue;
        if (!first) out_ += ',';
        first = false;
        out_ += cell_;
      }
      if (first) return refuse(rank, 0, "a rank without any action");
      out_ += line_end(layout_.newline);
    }
    return std::move(out_);
  }

 private:
  static bool ends_with(const Row& row, const Row& tail) {
    return row.size() >= tail.size() &&
           std::equal(tail.begin(), tail.end(), row.end() - static_cast<std::ptrdiff_t>(tail.size()));
  }

  [[nodiscard]] std::optional<std::size_t> end_of_actions(std::size_t rank) const {
    const Row& row = program_.rows[rank];
    const Row& with_reductions = tails_with_reductions_.rows[rank];
    if (!version_.has_reduce_grad() && ends_with(row, with_reductions)) return row.size() - with_reductions.size();
    if (ends_with(row, tails_.rows[rank])) return row.size() - tails_.rows[rank].size();
    return {};
  }

  [[nodiscard]] Error refuse(std::size_t rank, std::size_t at, std::string_view reason) const {
    return make_error(ErrorCode::kUnsupported, "csv.cannot_express",
                      "PyTorch's schedule files cannot hold this: rank {}, position {}: {}", rank, at, reason);
  }

  /// The stage whose only group this is.
  [[nodiscard]] StageId stage_of(GroupId group) const { return layout_.groups[group.index()].users.front(); }

  [[nodiscard]] bool known_group(const Value& value, std::size_t rank) const {
    if (value.group().value() < 0 || value.group().index() >= layout_.groups.size()) return false;
    return layout_.stages[stage_of(value.group()).index()].homes.front().index() == rank;
  }

  Result<> cell(std::size_t rank, std::size_t& at) {
    const Row& row = program_.rows[rank];
    const Instr& instr = row[at];
    if (const Op* op = std::get_if<Op>(&instr)) {
      PLAIT_TRY_VOID(torch_rules::check_op(layout_, rank, at, *op));
      append(cell_, *op);
      return {};
    }
    if (std::holds_alternative<Pair>(instr)) {
      const Op* first = at + 1 < row.size() ? std::get_if<Op>(&row[at + 1]) : nullptr;
      const Op* second = at + 2 < row.size() ? std::get_if<Op>(&row[at + 2]) : nullptr;
      if (first == nullptr || second == nullptr)
        return refuse(rank, at, "something stands between the two ops of a pair; PyTorch sends behind both");
      PLAIT_TRY_VOID(torch_rules::check_op(layout_, rank, at + 1, *first));
      PLAIT_TRY_VOID(torch_rules::check_op(layout_, rank, at + 2, *second));
      append_pair(cell_, *first, *second);
      at += 2;
      return {};
    }
    if (const Send* send = std::get_if<Send>(&instr))
      return transfer(rank, at, send->value, send->peer, kSendF, kSendB);
    if (const Recv* recv = std::get_if<Recv>(&instr))
      return transfer(rank, at, recv->value, recv->peer, kRecvF, kRecvB);
    if (const WaitSend* wait = std::get_if<WaitSend>(&instr)) {
      PLAIT_TRY_VOID(transfer(rank, at, wait->value, wait->peer, kWaitSendF, kWaitSendB));
      if (!version_.has_waits()) cell_.clear();
      return {};
    }
    if (const Free* free = std::get_if<Free>(&instr)) {
      if (free->value.kind() != ValueKind::kWeight || !known_group(free->value, rank))
        return refuse(rank, at, "this free");
      append(cell_, kReshard, stage_of(free->value.group()), {});
      return {};
    }
    if (const Collective* collective = std::get_if<Collective>(&instr)) return collective_cell(rank, at, *collective);
    if (const WaitCollective* wait = std::get_if<WaitCollective>(&instr)) {
      const bool reduction = wait->kind == CollectiveKind::kReduceScatter &&
                             wait->value.kind() == ValueKind::kWeightGrad && known_group(wait->value, rank);
      if (!reduction) return refuse(rank, at, "this wait");
      if (version_.has_waits()) append(cell_, kWaitReduceGrad, stage_of(wait->value.group()), {});
      return {};
    }
    return refuse(rank, at, fmt::format("this {}", kind_name(instr)));
  }

  Result<> collective_cell(std::size_t rank, std::size_t at, const Collective& collective) {
    const bool alone =
        collective.ranks.value() >= 0 && collective.ranks.index() < layout_.rank_sets.size() &&
        layout_.rank_sets[collective.ranks.index()] == std::vector<RankId>{RankId{static_cast<std::int32_t>(rank)}};
    const Value& value = collective.value;
    const bool gather = collective.kind == CollectiveKind::kAllGather && value.kind() == ValueKind::kWeight;
    const bool reduce = collective.kind == CollectiveKind::kReduceScatter && value.kind() == ValueKind::kWeightGrad;
    if (!gather && !reduce) return refuse(rank, at, fmt::format("this {}", to_string(collective.kind)));
    if (!alone) return refuse(rank, at, "a collective over several pipeline ranks");
    if (!known_group(value, rank)) return refuse(rank, at, "a group of another rank");
    append(cell_, gather ? kUnshard : kReduceGrad, stage_of(value.group()), {});
    return {};
  }

  Result<> transfer(std::size_t rank, std::size_t at, const Value& value, RankId peer, TorchActionType forward,
                    TorchActionType backward) {
    if (!value.is_edge())
      return refuse(rank, at,
                    fmt::format("a transfer of a {}; only activations and gradients between neighbouring stages travel",
                                to_string(value.kind())));
    if (value.edge().value() < 0 || value.edge().index() >= layout_.edges.size())
      return refuse(rank, at, "an edge that is not there");
    if (value.slice() != SliceId{}) return refuse(rank, at, "a slice");
    const Edge& edge = layout_.edges[value.edge().index()];
    const bool down = value.kind() == ValueKind::kActivation;
    const StageId sender = down ? edge.producer : edge.consumer;
    const StageId reader = down ? edge.consumer : edge.producer;
    const bool receives = forward == kRecvF;
    const StageId here = receives ? reader : sender;
    const StageId there = receives ? sender : reader;
    const bool at_home = layout_.stages[here.index()].homes.front().index() == rank &&
                         layout_.stages[there.index()].homes.front() == peer;
    if (!at_home) return refuse(rank, at, "a transfer between other ranks than the homes of its stages");
    append(cell_, down ? forward : backward, here, value.microbatch());
    return {};
  }

  const Program& program_;
  const Layout& layout_;
  TorchVersion version_;
  Program tails_;
  Program tails_with_reductions_;
  std::string cell_;
  std::string out_;
};

}  // namespace

Result<std::string> export_torch_csv(const Schedule& schedule) {
  PLAIT_TRY_VOID(torch_rules::check_layout(schedule.layout));
  PLAIT_TRY_VOID(torch_rules::check_schedule(schedule));
  std::string out;
  for (const Row& row : schedule.rows) {
    const std::size_t line_start = out.size();
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (at > 0) out += ',';
      if (const Op* op = std::get_if<Op>(&row[at])) {
        append(out, *op);
      } else if (std::holds_alternative<Pair>(row[at])) {
        append_pair(out, std::get<Op>(row[at + 1]), std::get<Op>(row[at + 2]));
        at += 2;
      }
    }
    if (out.size() == line_start)
      return make_error(ErrorCode::kUnsupported, "csv.cannot_express",
                        "PyTorch's schedule files cannot hold this: a rank without any action");
    out += line_end(schedule.layout.newline);
  }
  return out;
}

Result<std::string> export_torch_csv(const Program& program, TorchVersion version) {
  const Layout& layout = program.layout;
  PLAIT_TRY_VOID(torch_rules::check_layout(layout));
  PLAIT_TRY_VOID(torch_rules::check_groups(layout));
  for (const ParamGroup& group : layout.groups) {
    if (group.residency != Residency::kSharded)
      return make_error(ErrorCode::kUnsupported, "csv.cannot_express",
                        "PyTorch's schedule files cannot hold this: the weights of group {} are resident on their "
                        "rank, PyTorch's are "
                        "gathered and freed; lower the schedule for compute_comms",
                        group.name);
  }
  return CommsWriter(program, version).run();
}

}  // namespace plait
