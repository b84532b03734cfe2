#include "plait/run/engine/describe.h"

#include <fmt/format.h>

namespace plait {
namespace {

struct Words {
  std::string operator()(const Op& op) const { return "op " + describe(op); }
  std::string operator()(const Pair&) const { return "pair"; }
  std::string operator()(const Idle&) const { return "idle"; }
  std::string operator()(const Turn&) const { return "turn"; }
  std::string operator()(const Batch& batch) const { return fmt::format("batch of {}", batch.count); }
  std::string operator()(const Send& send) const {
    return fmt::format("send of the {} to rank {}", describe(send.value), send.peer.value());
  }
  std::string operator()(const Recv& recv) const {
    return fmt::format("receive of the {} from rank {}", describe(recv.value), recv.peer.value());
  }
  std::string operator()(const WaitSend& wait) const {
    return fmt::format("wait for the send of the {} to rank {}", describe(wait.value), wait.peer.value());
  }
  std::string operator()(const Collective& collective) const {
    return fmt::format("{} of the {}", to_string(collective.kind), describe(collective.value));
  }
  std::string operator()(const WaitCollective& wait) const {
    return fmt::format("wait for the {} of the {}", to_string(wait.kind), describe(wait.value));
  }
  std::string operator()(const Free& free) const { return fmt::format("free of the {}", describe(free.value)); }
  std::string operator()(const Add& add) const {
    return fmt::format("add of the gradient of group {}", add.group.value());
  }
  std::string operator()(const Step& step) const { return fmt::format("step of group {}", step.group.value()); }
  std::string operator()(const Validate&) const { return "validation of the steps"; }
};

}  // namespace

std::string describe(const Op& op) {
  const std::string slice = op.slice.value() == 0 ? "" : fmt::format(".{}", op.slice.value());
  return fmt::format("{}{}{}{}", op.stage.value(), to_string(op.kind), op.microbatch.value(), slice);
}

std::string describe(const Value& value) {
  if (value.kind() == ValueKind::kNorm) return "norm";
  if (value.is_group()) return fmt::format("{} of group {}", to_string(value.kind()), value.group().value());
  const std::string subject =
      value.is_edge() ? fmt::format("edge {}", value.edge().value()) : fmt::format("stage {}", value.stage().value());
  const std::string slice = value.slice().value() == 0 ? "" : fmt::format(", slice {}", value.slice().value());
  return fmt::format("{} of {}, micro-batch {}{}", to_string(value.kind()), subject, value.microbatch().value(), slice);
}

std::string describe(const Instr& instr) {
  return std::visit(Words{}, instr);
}

}  // namespace plait
