#include "plait/verify/rules.h"

#include "plait/base/check.h"

#include <array>

namespace plait {
namespace {

constexpr std::array kRules = {
    RuleInfo{Rule::kLayout, "verify.layout", "the layout names ranks, stages, edges or groups that it does not have"},
    RuleInfo{Rule::kRanks, "verify.ranks", "the number of rows is not the number of ranks"},
    RuleInfo{Rule::kOutOfRange, "verify.out_of_range", "an instruction names an id outside the layout's sizes"},
    RuleInfo{Rule::kNoSuchEdge, "verify.no_such_edge", "a transfer over an edge that no two stages have"},
    RuleInfo{Rule::kNoMeaning, "verify.no_meaning", "a transfer or collective of a kind of value that has none"},
    RuleInfo{Rule::kPair, "verify.pair", "a pair is not followed by two ops"},
    RuleInfo{Rule::kTurns, "verify.turns", "ranks have different numbers of turns"},
    RuleInfo{Rule::kForwardOnly, "verify.forward_only", "a forward-only program holds backwards or steps"},
    RuleInfo{Rule::kDuplicateOp, "verify.duplicate_op", "a stage, micro-batch and slice is computed twice"},
    RuleInfo{Rule::kMissingForward, "verify.missing_forward", "a stage, micro-batch and slice is never forwarded"},
    RuleInfo{Rule::kMissingBackward, "verify.missing_backward", "a stage, micro-batch and slice is never backed"},
    RuleInfo{Rule::kMissingWeightGradient, "verify.missing_weight_gradient",
             "an input gradient without its weight gradient"},
    RuleInfo{Rule::kBackwardBeforeForward, "verify.backward_before_forward", "a backward stands before its forward"},
    RuleInfo{Rule::kWeightBeforeBackward, "verify.weight_before_backward",
             "a weight gradient stands before its backward"},
    RuleInfo{Rule::kForwardOrder, "verify.forward_order", "a forward stands before the forward that feeds it"},
    RuleInfo{Rule::kBackwardOrder, "verify.backward_order", "a backward stands before the backward that feeds it"},
    RuleInfo{Rule::kSlicesAscend, "verify.slices_ascend", "forwards of the slices of a sequence do not ascend"},
    RuleInfo{Rule::kSlicesDescend, "verify.slices_descend", "backwards of the slices of a sequence do not descend"},
    RuleInfo{Rule::kRecomputeOrder, "verify.recompute_order",
             "a recompute does not stand between its forward and backward"},
    RuleInfo{Rule::kSelfMessage, "verify.self_message", "a rank sends to or receives from itself"},
    RuleInfo{Rule::kSendWithoutReceive, "verify.send_without_receive", "a send that no rank receives"},
    RuleInfo{Rule::kReceiveWithoutSend, "verify.receive_without_send", "a receive of what no rank sends"},
    RuleInfo{Rule::kDuplicateReceive, "verify.duplicate_receive", "a value is received more often than sent"},
    RuleInfo{Rule::kDuplicateSend, "verify.duplicate_send", "a value is sent more often than received"},
    RuleInfo{Rule::kMessageMismatch, "verify.message_mismatch", "a receive names another value than the send it meets"},
    RuleInfo{Rule::kMessageOrder, "verify.message_order", "a pair of ranks receives in another order than it sends"},
    RuleInfo{Rule::kWrongPeer, "verify.wrong_peer", "sender and receiver of a value name different peers"},
    RuleInfo{Rule::kMissingWaitSend, "verify.missing_wait_send", "a send is never waited for"},
    RuleInfo{Rule::kWaitWithoutSend, "verify.wait_without_send", "a wait before or without its send"},
    RuleInfo{Rule::kDuplicateWaitSend, "verify.duplicate_wait_send", "a send is waited for twice"},
    RuleInfo{Rule::kBatch, "verify.batch",
             "a batch is not followed by its transfers with one peer, or meets more than one batch of the peer"},
    RuleInfo{Rule::kCollectiveMember, "verify.collective_member",
             "a rank enters a collective of ranks it is not one of"},
    RuleInfo{Rule::kCollectiveMissing, "verify.collective_missing",
             "a member never enters a collective that others enter"},
    RuleInfo{Rule::kCollectiveOrder, "verify.collective_order", "members enter collectives in different orders"},
    RuleInfo{Rule::kGatherMembers, "verify.gather_members", "a gather or broadcast without a rank whose part it needs"},
    RuleInfo{Rule::kNormMembers, "verify.norm_members", "the global norm leaves out a rank that holds gradients"},
    RuleInfo{Rule::kMissingWaitCollective, "verify.missing_wait_collective",
             "the result of a reduction is used or dropped unwaited"},
    RuleInfo{Rule::kWaitWithoutCollective, "verify.wait_without_collective",
             "a wait for a collective that is not under way"},
    RuleInfo{Rule::kMissingReceive, "verify.missing_receive",
             "an op reads what another rank made and this rank never receives"},
    RuleInfo{Rule::kReceiveAfterUse, "verify.receive_after_use", "a receive stands behind the op that reads its value"},
    RuleInfo{Rule::kSendBeforeWrite, "verify.send_before_write", "a send stands before the op that writes its value"},
    RuleInfo{Rule::kSendNotHeld, "verify.send_not_held", "a rank sends a value that it does not hold"},
    RuleInfo{Rule::kHeldTwice, "verify.held_twice", "a rank receives or gathers what it already holds"},
    RuleInfo{Rule::kStashNotHere, "verify.stash_not_here",
             "a backward on a rank that does not hold the stash of its forward"},
    RuleInfo{Rule::kWeightStashNotHere, "verify.weight_stash_not_here",
             "a weight gradient on a rank without what its backward left for it"},
    RuleInfo{Rule::kKvNotHere, "verify.kv_not_here", "keys and values of an earlier slice are on another rank"},
    RuleInfo{Rule::kWeightsNotHere, "verify.weights_not_here",
             "an op or a free on a rank that does not hold the stage's weights"},
    RuleInfo{Rule::kWrongWeights, "verify.wrong_weights",
             "an op needs the weights of one group where copies of others have come"},
    RuleInfo{Rule::kFreeOfHome, "verify.free_of_home", "a home frees its own weights"},
    RuleInfo{Rule::kFreedBeforeSent, "verify.freed_before_sent", "weights are freed while their send is under way"},
    RuleInfo{Rule::kLeakedWeight, "verify.leaked_weight", "a copy of weights is never freed"},
    RuleInfo{Rule::kActivationLimit, "verify.activation_limit", "a rank holds more stashes than the limit given"},
    RuleInfo{Rule::kMissingReduce, "verify.missing_reduce", "a step of a partial gradient that was never reduced"},
    RuleInfo{Rule::kReduceTwice, "verify.reduce_twice", "a gradient is reduced twice"},
    RuleInfo{Rule::kReduceBeforeBackward, "verify.reduce_before_backward",
             "a gradient is reduced or sent before its last backward"},
    RuleInfo{Rule::kGradientUnderWay, "verify.gradient_under_way",
             "a gradient is added to, sent or reduced again while its reduction is under way"},
    RuleInfo{Rule::kMissingContribution, "verify.missing_contribution",
             "contributions to a gradient never reach its step"},
    RuleInfo{Rule::kForeignContribution, "verify.foreign_contribution",
             "a rank without part in a gradient enters its reduction"},
    RuleInfo{Rule::kMissingAdd, "verify.missing_add", "a received partial gradient is never added"},
    RuleInfo{Rule::kAddWithoutReceive, "verify.add_without_receive", "an add without a received partial gradient"},
    RuleInfo{Rule::kLeakedGradient, "verify.leaked_gradient",
             "a reduced gradient ends on a rank that does not step it"},
    RuleInfo{Rule::kMissingStep, "verify.missing_step", "a home never steps its group"},
    RuleInfo{Rule::kDuplicateStep, "verify.duplicate_step", "a home steps its group twice"},
    RuleInfo{Rule::kStepOffHome, "verify.step_off_home", "a step on a rank that is not a home of the group"},
    RuleInfo{Rule::kStepTooEarly, "verify.step_too_early", "weights or gradients are used behind the step"},
    RuleInfo{Rule::kStepBeforeNorm, "verify.step_before_norm",
             "a step stands before the global norm is complete, and is not validated behind it"},
    RuleInfo{Rule::kNormBeforeGradients, "verify.norm_before_gradients",
             "the norm is taken before the gradients are complete"},
    RuleInfo{Rule::kValidateTwice, "verify.validate_twice", "a rank validates its steps twice"},
    RuleInfo{Rule::kDeadlock, "verify.deadlock", "ranks wait for each other in a circle"},
};

}  // namespace

std::span<const RuleInfo> verify_rules() {
  return kRules;
}

std::string_view rule_id(Rule rule) {
  const RuleInfo& info = kRules[static_cast<std::size_t>(rule)];
  PLAIT_CHECK(info.rule == rule, "the table of rules does not follow the enumeration at {}", info.id);
  return info.id;
}

}  // namespace plait
