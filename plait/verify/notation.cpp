#include "plait/verify/notation.h"

#include <fmt/format.h>

namespace plait {
namespace {

bool has_edge(const Layout& layout, Value value) {
  return value.is_edge() && value.edge().value() >= 0 && value.edge().index() < layout.edges.size();
}

std::string data_suffix(const Layout& layout, Value value) {
  return layout.num_slices > 1 ? fmt::format("{}.{}", value.microbatch().value(), value.slice().value())
                               : fmt::format("{}", value.microbatch().value());
}

std::string group_name(const Layout& layout, GroupId group) {
  if (group.value() < 0 || group.index() >= layout.groups.size()) return fmt::format("#{}", group.value());
  return layout.groups[group.index()].name;
}

/// Transfers of activations and gradients in PyTorch's words: a SEND names the stage that made the value, a RECV the one
/// that reads it.
enum class End : std::uint8_t { kSender, kReceiver };
std::string transfer(const Layout& layout, std::string_view verb, Value value, End end) {
  if (!has_edge(layout, value)) return fmt::format("{} of the {}", verb, describe(layout, value));
  const Edge& edge = layout.edges[value.edge().index()];
  const bool down = value.kind() == ValueKind::kActivation;
  const StageId stage = (end == End::kSender) == down ? edge.producer : edge.consumer;
  return fmt::format("{}{}_{}{}", stage.value(), verb, down ? 'F' : 'B', data_suffix(layout, value));
}

struct Describe {
  const Layout& layout;
  std::string operator()(const Op& op) const {
    const std::string slice = layout.num_slices > 1 ? fmt::format(".{}", op.slice.value()) : "";
    return fmt::format("{}{}{}{}", op.stage.value(), to_string(op.kind), op.microbatch.value(), slice);
  }
  std::string operator()(const Pair&) const { return "pair"; }
  std::string operator()(const Idle&) const { return "idle"; }
  std::string operator()(const Turn&) const { return "turn"; }
  std::string operator()(const Batch& x) const { return fmt::format("batch of {}", x.count); }
  std::string operator()(const Send& x) const { return transfer(layout, "SEND", x.value, End::kSender); }
  std::string operator()(const Recv& x) const { return transfer(layout, "RECV", x.value, End::kReceiver); }
  std::string operator()(const WaitSend& x) const { return transfer(layout, "WAIT_SEND", x.value, End::kSender); }
  std::string operator()(const Collective& x) const {
    return fmt::format("{} of the {}", to_string(x.kind), describe(layout, x.value));
  }
  std::string operator()(const WaitCollective& x) const {
    return fmt::format("wait for the {} of the {}", to_string(x.kind), describe(layout, x.value));
  }
  std::string operator()(const Free& x) const { return fmt::format("free of the {}", describe(layout, x.value)); }
  std::string operator()(const Add& x) const {
    return fmt::format("add to the gradient of group {}", group_name(layout, x.group));
  }
  std::string operator()(const Step& x) const { return fmt::format("step of group {}", group_name(layout, x.group)); }
  std::string operator()(const Validate&) const { return "validation of the steps"; }
};

}  // namespace

std::string describe(const Layout& layout, const Instr& instr) {
  return std::visit(Describe{layout}, instr);
}

std::string describe(const Layout& layout, Value value) {
  const auto data = [&] {
    return layout.num_slices > 1
               ? fmt::format("micro-batch {}, slice {}", value.microbatch().value(), value.slice().value())
               : fmt::format("micro-batch {}", value.microbatch().value());
  };
  switch (value.kind()) {
    case ValueKind::kActivation:
    case ValueKind::kGradient: {
      if (!has_edge(layout, value))
        return fmt::format("{} of edge {}, {}", to_string(value.kind()), value.edge().value(), data());
      const Edge& edge = layout.edges[value.edge().index()];
      return fmt::format("{} of edge {}>{}, {}", to_string(value.kind()), edge.producer.value(), edge.consumer.value(),
                         data());
    }
    case ValueKind::kStash: return fmt::format("stash of stage {}, {}", value.stage().value(), data());
    case ValueKind::kWeightStash: return fmt::format("weight stash of stage {}, {}", value.stage().value(), data());
    case ValueKind::kKv: return fmt::format("keys and values of stage {}, {}", value.stage().value(), data());
    case ValueKind::kKvGrad:
      return fmt::format("gradient of the keys and values of stage {}, {}", value.stage().value(), data());
    case ValueKind::kWeight: return fmt::format("weights of group {}", group_name(layout, value.group()));
    case ValueKind::kWeightGrad: return fmt::format("gradient of group {}", group_name(layout, value.group()));
    case ValueKind::kNorm: return "norm";
  }
  return "?";
}

}  // namespace plait
