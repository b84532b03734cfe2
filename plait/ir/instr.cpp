#include "plait/ir/instr.h"

namespace plait {
namespace {

struct KindName {
  std::string_view operator()(const Op&) const { return "op"; }
  std::string_view operator()(const Pair&) const { return "pair"; }
  std::string_view operator()(const Idle&) const { return "idle"; }
  std::string_view operator()(const Turn&) const { return "turn"; }
  std::string_view operator()(const Batch&) const { return "batch"; }
  std::string_view operator()(const Send&) const { return "send"; }
  std::string_view operator()(const Recv&) const { return "recv"; }
  std::string_view operator()(const WaitSend&) const { return "wait_send"; }
  std::string_view operator()(const Collective& c) const { return to_string(c.kind); }
  std::string_view operator()(const WaitCollective&) const { return "wait_collective"; }
  std::string_view operator()(const Free&) const { return "free"; }
  std::string_view operator()(const Add&) const { return "add"; }
  std::string_view operator()(const Step&) const { return "step"; }
  std::string_view operator()(const Validate&) const { return "validate"; }
};

}  // namespace

std::string_view to_string(ValueKind kind) {
  switch (kind) {
    case ValueKind::kActivation: return "activation";
    case ValueKind::kGradient: return "gradient";
    case ValueKind::kStash: return "stash";
    case ValueKind::kWeightStash: return "weight_stash";
    case ValueKind::kKv: return "kv";
    case ValueKind::kKvGrad: return "kv_grad";
    case ValueKind::kWeight: return "weight";
    case ValueKind::kWeightGrad: return "wgrad";
    case ValueKind::kNorm: return "norm";
  }
  return "?";
}

std::string_view to_string(OpKind kind) {
  switch (kind) {
    case OpKind::kForward: return "F";
    case OpKind::kBackwardInput: return "B";
    case OpKind::kBackwardWeight: return "W";
    case OpKind::kBackward: return "BW";
    case OpKind::kRecompute: return "R";
  }
  return "?";
}

std::string_view to_string(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce: return "all_reduce";
    case CollectiveKind::kReduceScatter: return "reduce_scatter";
    case CollectiveKind::kAllGather: return "all_gather";
    case CollectiveKind::kBroadcast: return "broadcast";
    case CollectiveKind::kReduce: return "reduce";
    case CollectiveKind::kAllToAll: return "all_to_all";
  }
  return "?";
}

std::string_view kind_name(const Instr& instr) {
  return std::visit(KindName{}, instr);
}

}  // namespace plait
