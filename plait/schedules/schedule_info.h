#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/ir/replicate.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace plait {

/// Integer time of the abstract cost model. How many ticks make a unit is the caller's choice; F, B and W must divide by
/// chunks x slices, so that 1/(v k) of an op is exact.
using Ticks = std::int64_t;

/// Times of a 1/p share of the model for one micro-batch: an op of one of v chunks and k slices takes 1/(v k) of it.
struct OpTimes {
  Ticks forward = 1;
  Ticks backward = 1;  ///< gradient of the input
  Ticks weight = 1;    ///< gradient of the weights; BW takes backward + weight
  Ticks transfer = 0;  ///< fixed time of a transfer between ranks
  friend bool operator==(const OpTimes&, const OpTimes&) = default;
};

enum class Order : std::uint8_t { kMegatron, kTorch };
enum class QkvPlace : std::uint8_t { kPre, kAttn };
/// How the residual of a layer reaches its post where attention runs elsewhere.
enum class ResidualPath : std::uint8_t { kThrough, kDirect };
/// How often weights are shipped to a rank that borrows them.
enum class WeightTrips : std::uint8_t { kPerMicrobatch, kOnce };
enum class Squeeze : std::uint8_t { kFull, kPatternOnly };
enum class Reshard : std::uint8_t { kAfterForward, kAfterBackward };
enum class SliceCut : std::uint8_t { kEqualTokens, kEqualCompute };
/// When an activation leaves for a partner's memory: as its slot is needed, or one op ahead.
enum class Eviction : std::uint8_t { kLate, kEarly };

/// What a schedule is asked for. An unset field means that the schedule takes its own default or derives it; a set one
/// that conflicts is refused by `supports`.
struct ScheduleShape {
  int ranks = 1;
  std::optional<int> microbatches;
  std::optional<int> chunks;    ///< stages per rank (v); 1 is accepted by every single-chunk schedule
  std::optional<int> slices;    ///< slices per sequence (k)
  std::optional<int> layers;    ///< default: one per stage
  std::optional<int> folds;     ///< HelixPipe F
  std::optional<int> repeats;   ///< M = R F p
  std::optional<int> groups;    ///< TawPipe D
  std::optional<int> rounds;    ///< M = R P
  std::optional<int> prefetch;  ///< FSDP, TawPipe: ops for which weights are fetched ahead
  std::optional<int> replicas;  ///< copies of the schedule side by side, P/N ranks and M/N micro-batches each
  ReplicaState replica_state = ReplicaState::kWhole;
  HeadTying tying = HeadTying::kUntied;
  Order order = Order::kMegatron;
  Recompute recompute = Recompute::kNone;
  std::optional<QkvPlace> qkv;  ///< default: attn where recompute leaves out attention, else pre
  ResidualPath residual = ResidualPath::kThrough;
  WeightTrips weights = WeightTrips::kPerMicrobatch;
  Squeeze squeeze = Squeeze::kFull;
  Reshard reshard = Reshard::kAfterForward;  ///< FSDP: when gathered weights are dropped
  SliceCut slice_cut = SliceCut::kEqualTokens;
  Eviction eviction = Eviction::kLate;
  OpTimes times;                    ///< for schedules that are built from times
  std::optional<int> memory_limit;  ///< peak activations per rank, in micro-batches of a 1/p stage
};

/// Closed forms of a schedule for a shape, in ticks of shape.times, zero transfer time. Unset = no closed form is stated.
struct Expectation {
  std::optional<Ticks> makespan;  ///< first start to last end over all ranks
  std::optional<Ticks> max_idle;  ///< largest idle time between a rank's own first and last op
  /// Per rank, in units of 1/(v k) micro-batch of a 1/p stage: taken at F, released at BW or W.
  std::optional<std::vector<int>> peak_activation_units;
  std::optional<std::int64_t> sends;             ///< point-to-point messages of one step, all ranks
  std::optional<double> published_bubble_ratio;  ///< the paper's formula, where it is not what a replay gives
};

/// One system. Each lives in one file of this folder and registers itself there.
struct ScheduleInfo {
  std::string_view name;                                 ///< stable, lower-case
  std::string_view summary;                              ///< one line
  std::string_view needs;                                ///< one line: which shapes it takes, e.g. "m a multiple of p"
  std::string_view forms;                                ///< one line: its closed forms, for `schedule list`
  std::string_view source;                               ///< paper and section
  Result<> (*supports)(const ScheduleShape&) = nullptr;  ///< refuses with the fix in the message
  /// Ops in the order of the paper's figure, without recomputes: build_schedule adds those.
  Result<Schedule> (*build)(const ScheduleShape&) = nullptr;
  Expectation (*expect)(const ScheduleShape&) = nullptr;  ///< closed forms
};

/// All registered schedules, sorted by name.
const std::vector<const ScheduleInfo*>& all_schedules();

/// Case-insensitive. \errors kInvalidArgument "schedule.unknown" with the list of valid names
Result<const ScheduleInfo*> find_schedule(std::string_view name);

/// find_schedule, then supports, then build, then the recomputes and the replicas that the shape asks for. A schedule sees
/// the shape of one replica: `supports`, `build` and `expect` know nothing of the others.
///
/// \errors those of find_schedule, supports and build; "schedule.replicas" (ranks or micro-batches that the replicas do not
///         divide, and what replicate refuses)
Result<Schedule> build_schedule(std::string_view name, const ScheduleShape& shape);

namespace detail {
struct ScheduleRegistrar {
  explicit ScheduleRegistrar(const ScheduleInfo& info);  ///< a duplicate name aborts at start-up
};
}  // namespace detail

}  // namespace plait

/// At namespace scope of a schedule's file.
#define PLAIT_REGISTER_SCHEDULE(info)                               \
  const ::plait::detail::ScheduleRegistrar registrar_of_this_file { \
    info                                                            \
  }
