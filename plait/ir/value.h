#pragma once

#include "plait/base/ids.h"

#include <compare>
#include <cstdint>
#include <string_view>

namespace plait {

/// What ops read and write. Every value but a weight has exactly one holder at a time: reading it consumes it, sending it
/// gives it away, receiving it makes the receiver its holder.
enum class ValueKind : std::uint8_t {
  kActivation,   ///< written by F of the edge's producer, consumed by F of its consumer
  kGradient,     ///< gradient of an activation: written by B of the edge's consumer, consumed by B of its producer
  kStash,        ///< written by F (or R), consumed by B or BW of the same stage, micro-batch and slice
  kWeightStash,  ///< written by B, consumed by W
  kKv,           ///< keys and values of a slice: written by F, read by F of later slices and B of this and later ones
  kKvGrad,       ///< gradient of keys and values, collected by B of later slices, consumed by B of the slice
  kWeight,       ///< weight of a group, whole or one shard of it; read, never consumed
  kWeightGrad,   ///< partial weight gradient of a group, with the set of its contributors
  kNorm,         ///< square sum of a rank's complete gradients, for the global norm
};

/// Lower-case name as printed by `stats` and the text format: "activation", "wgrad", ...
std::string_view to_string(ValueKind kind);

/// Name of a value: 16 bytes, compared and hashed as a whole. Which coordinates count depends on the kind, so it is
/// built and read through the functions below only.
class Value {
 public:
  constexpr Value() = default;
  static constexpr Value activation(EdgeId e, MicrobatchId m, SliceId q) {
    return {ValueKind::kActivation, e.value(), m.value(), q.value()};
  }
  static constexpr Value gradient(EdgeId e, MicrobatchId m, SliceId q) {
    return {ValueKind::kGradient, e.value(), m.value(), q.value()};
  }
  static constexpr Value stash(StageId s, MicrobatchId m, SliceId q) {
    return {ValueKind::kStash, s.value(), m.value(), q.value()};
  }
  static constexpr Value weight_stash(StageId s, MicrobatchId m, SliceId q) {
    return {ValueKind::kWeightStash, s.value(), m.value(), q.value()};
  }
  static constexpr Value kv(StageId s, MicrobatchId m, SliceId q) {
    return {ValueKind::kKv, s.value(), m.value(), q.value()};
  }
  static constexpr Value kv_grad(StageId s, MicrobatchId m, SliceId q) {
    return {ValueKind::kKvGrad, s.value(), m.value(), q.value()};
  }
  static constexpr Value weight(GroupId g) { return {ValueKind::kWeight, g.value(), 0, 0}; }
  static constexpr Value weight_grad(GroupId g) { return {ValueKind::kWeightGrad, g.value(), 0, 0}; }
  static constexpr Value norm() { return {ValueKind::kNorm, 0, 0, 0}; }

  [[nodiscard]] constexpr ValueKind kind() const { return kind_; }
  [[nodiscard]] constexpr bool is_edge() const { return kind_ <= ValueKind::kGradient; }
  [[nodiscard]] constexpr bool is_group() const {
    return kind_ == ValueKind::kWeight || kind_ == ValueKind::kWeightGrad;
  }
  [[nodiscard]] constexpr EdgeId edge() const { return EdgeId{subject_}; }     ///< activation, gradient
  [[nodiscard]] constexpr StageId stage() const { return StageId{subject_}; }  ///< stash, weight_stash, kv, kv_grad
  [[nodiscard]] constexpr GroupId group() const { return GroupId{subject_}; }  ///< weight, weight_grad
  [[nodiscard]] constexpr MicrobatchId microbatch() const { return MicrobatchId{microbatch_}; }
  [[nodiscard]] constexpr SliceId slice() const { return SliceId{slice_}; }
  friend constexpr auto operator<=>(const Value&, const Value&) = default;

 private:
  constexpr Value(ValueKind kind, std::int32_t subject, std::int32_t microbatch, std::int32_t slice)
      : kind_(kind), subject_(subject), microbatch_(microbatch), slice_(slice) {}
  ValueKind kind_ = ValueKind::kNorm;
  std::int32_t subject_ = 0;
  std::int32_t microbatch_ = 0;
  std::int32_t slice_ = 0;
};

}  // namespace plait
