#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace plait {

/// Everything the verifier can say is wrong. Ids are stable; each has one meaning and a broken program in tests/error.
enum class Rule : std::uint8_t {
  // The layout and the ids.
  kLayout,
  kRanks,
  kOutOfRange,
  kNoSuchEdge,
  kNoMeaning,
  // Ops.
  kPair,
  kTurns,
  kForwardOnly,
  kDuplicateOp,
  kMissingForward,
  kMissingBackward,
  kMissingWeightGradient,
  kBackwardBeforeForward,
  kWeightBeforeBackward,
  kForwardOrder,
  kBackwardOrder,
  kSlicesAscend,
  kSlicesDescend,
  kRecomputeOrder,
  // Messages.
  kSelfMessage,
  kSendWithoutReceive,
  kReceiveWithoutSend,
  kDuplicateReceive,
  kDuplicateSend,
  kMessageMismatch,
  kMessageOrder,
  kWrongPeer,
  kMissingWaitSend,
  kWaitWithoutSend,
  kDuplicateWaitSend,
  kBatch,
  // Collectives.
  kCollectiveMember,
  kCollectiveMissing,
  kCollectiveOrder,
  kGatherMembers,
  kNormMembers,
  kMissingWaitCollective,
  kWaitWithoutCollective,
  // What a rank holds.
  kMissingReceive,
  kReceiveAfterUse,
  kSendBeforeWrite,
  kSendNotHeld,
  kHeldTwice,
  kStashNotHere,
  kWeightStashNotHere,
  kKvNotHere,
  kWeightsNotHere,
  kWrongWeights,
  kFreeOfHome,
  kFreedBeforeSent,
  kLeakedWeight,
  kActivationLimit,
  // Weight gradients and steps.
  kMissingReduce,
  kReduceTwice,
  kReduceBeforeBackward,
  kGradientUnderWay,
  kMissingContribution,
  kForeignContribution,
  kMissingAdd,
  kAddWithoutReceive,
  kLeakedGradient,
  kMissingStep,
  kDuplicateStep,
  kStepOffHome,
  kStepTooEarly,
  kStepBeforeNorm,
  kNormBeforeGradients,
  kValidateTwice,
  // Across ranks.
  kDeadlock,
};

struct RuleInfo {
  Rule rule = Rule::kLayout;
  std::string_view id;       ///< "verify.backward_before_forward"
  std::string_view meaning;  ///< one line
};

/// All rules, in the order of the enumeration.
std::span<const RuleInfo> verify_rules();

std::string_view rule_id(Rule rule);

}  // namespace plait
