#include "plait/cli/schedule_flags.h"

#include "plait/base/files.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <string_view>

namespace plait {
namespace {

/// The value among `names` that stands at the place of `given`; CLI11 has refused anything else.
template <class Enum>
Enum pick(const std::optional<std::string>& given, std::span<const std::string_view> names, Enum unset) {
  if (!given) return unset;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (*given == names[i]) return static_cast<Enum>(i);
  return unset;
}

// In the order of the enumerators.
constexpr std::array<std::string_view, 2> kOrders = {"megatron", "torch"};
constexpr std::array<std::string_view, 3> kRecomputes = {"none", "full", "no-attention"};
constexpr std::array<std::string_view, 2> kQkvPlaces = {"pre", "attn"};
constexpr std::array<std::string_view, 2> kResidualPaths = {"through", "direct"};
constexpr std::array<std::string_view, 2> kWeightTrips = {"per-microbatch", "once"};
constexpr std::array<std::string_view, 2> kSliceCuts = {"tokens", "compute"};
constexpr std::array<std::string_view, 2> kEvictions = {"late", "early"};
constexpr std::array<std::string_view, 2> kReshards = {"forward", "backward"};
constexpr std::array<std::string_view, 2> kReplicaStates = {"whole", "sharded"};
constexpr std::array<std::string_view, 2> kHeads = {"untied", "tied"};

/// Folds of HelixPipe where --repeats is given without them: the two-fold order is the paper's own.
constexpr int kDefaultFolds = 2;

template <std::size_t N>
std::vector<std::string> strings(const std::array<std::string_view, N>& names) {
  return {names.begin(), names.end()};
}

/// Product of counts, or nothing where it does not fit an int.
std::optional<int> product(std::initializer_list<int> factors) {
  int result = 1;
  for (const int factor : factors)
    if (__builtin_mul_overflow(result, factor, &result)) return {};
  return result;
}

/// M from one of --repeats and --rounds, held against what is known already.
Result<> derive_microbatches(std::string_view flag, std::string_view formula, std::optional<int> derived,
                             std::optional<int>& microbatches) {
  if (!derived)
    return make_error(ErrorCode::kInvalidArgument, "flags.conflict", "{}: M = {} does not fit 31 bits", flag, formula);
  if (microbatches && *microbatches != *derived)
    return make_error(ErrorCode::kInvalidArgument, "flags.conflict",
                      "{} means M = {} = {}, but {} micro-batches are asked for; leave one out", flag, formula,
                      *derived, *microbatches);
  microbatches = derived;
  return {};
}

/// Ticks in which the times of the shape, and what schedules and costs split them into, are whole.
Result<> make_exact(ScheduleRequest& request) {
  ScheduleShape& shape = request.shape;
  const auto positive = [](std::optional<int> size, std::int64_t unset) {
    return size ? std::max<std::int64_t>(*size, 1) : unset;
  };
  const std::int64_t ranks = positive(shape.ranks, 1);
  // An op of one of v chunks and k slices takes 1/(v k). Two chunks are in it even when not asked for: some systems have
  // two anyway. Parts are averaged over the ranks below, and cut between norm and qkv.
  std::int64_t shares = 0;
  if (__builtin_mul_overflow(std::lcm(positive(shape.chunks, 1), std::int64_t{2}), positive(shape.slices, 1),
                             &shares) ||
      (request.times.form == TimesSpec::Form::kParts && __builtin_mul_overflow(shares, ranks, &shares)))
    return make_error(ErrorCode::kInvalidArgument, "times.too_fine",
                      "--chunks, --slices and --ranks are too large to split times exactly");
  PLAIT_TRY(request.ticks_per_unit, ticks_per_unit(request.times, shares));
  const auto ticks = [&](const Decimal& value) { return to_ticks(value, request.ticks_per_unit); };
  PLAIT_TRY(shape.times.transfer, ticks(request.times.latency));
  if (request.times.form == TimesSpec::Form::kOps) {
    PLAIT_TRY(shape.times.forward, ticks(request.times.forward));
    PLAIT_TRY(shape.times.backward, ticks(request.times.backward));
    PLAIT_TRY(shape.times.weight, ticks(request.times.weight));
    // A recompute stands right before its backward: to a schedule that is built from times, part of it.
    if (shape.recompute == Recompute::kFull) shape.times.backward += shape.times.forward;
    return {};
  }
  // pre and post: B = W = F; attention: B = 2F, W = 0. A schedule that is built from times gets the mean of a rank.
  PLAIT_TRY(const Ticks pre, ticks(request.times.pre));
  PLAIT_TRY(const Ticks attn, ticks(request.times.attn));
  PLAIT_TRY(const Ticks post, ticks(request.times.post));
  const std::int64_t layers = positive(shape.layers, positive(shape.chunks, 1) * ranks);
  const auto mean_of_a_rank = [&](Ticks per_layer, Ticks& share) {
    Ticks whole = 0;
    if (__builtin_mul_overflow(per_layer, layers, &whole)) return false;
    share = whole / ranks;
    return true;
  };
  const Ticks again = shape.recompute == Recompute::kNone   ? 0
                      : shape.recompute == Recompute::kFull ? pre + attn + post
                                                            : pre + post;
  if (!mean_of_a_rank(pre + attn + post, shape.times.forward) ||
      !mean_of_a_rank(pre + 2 * attn + post + again, shape.times.backward) ||
      !mean_of_a_rank(pre + post, shape.times.weight))
    return make_error(ErrorCode::kInvalidArgument, "times.overflow",
                      "--times: the time of a rank with {} layers does not fit 63 bits", layers);
  return {};
}

}  // namespace

void add_schedule_flags(CLI::App& app, ScheduleFlags& flags) {
  constexpr const char* kShape = "Shape";
  constexpr const char* kChoices = "What the schedule adds";
  constexpr const char* kTimes = "Times";
  app.add_option("--ranks", flags.ranks, "P: devices")->group(kShape);
  app.add_option("--microbatches", flags.microbatches, "M: micro-batches of a step")->group(kShape);
  app.add_option("--chunks", flags.chunks, "V: stages per rank")->group(kShape);
  app.add_option("--slices", flags.slices, "K: slices of a sequence")->group(kShape);
  app.add_option("--layers", flags.layers, "L: layers of the model (default: one per stage)")->group(kShape);
  app.add_option("--repeats", flags.repeats, "R: M = R F P, for attention-parallel pipelines")->group(kShape);
  app.add_option("--rounds", flags.rounds, "R: M = R P, for weight passing")->group(kShape);
  app.add_option("--folds", flags.folds, "F: folds of an attention-parallel pipeline")->group(kChoices);
  app.add_option("--groups", flags.groups, "D: groups of ranks")->group(kChoices);
  app.add_option(
         "--prefetch", flags.prefetch,
         "sharded data parallel and grouped weight passing: ops for which weights are fetched ahead (default 1)")
      ->group(kChoices);
  app.add_option("--replicas", flags.replicas, "N: copies side by side, each of P/N ranks and M/N micro-batches")
      ->group(kShape);
  app.add_option("--replica-state", flags.replica_state,
                 "what a replica keeps of weights and optimizer: whole, or sharded over the replicas (default whole)")
      ->check(CLI::IsMember(strings(kReplicaStates)))
      ->group(kShape);
  app.add_option("--reshard", flags.reshard,
                 "sharded data parallel: drop weights behind forward or backward (default forward)")
      ->check(CLI::IsMember(strings(kReshards)))
      ->group(kChoices);
  app.add_option("--order", flags.order, "where two exist: megatron or torch (default megatron)")
      ->check(CLI::IsMember(strings(kOrders)))
      ->group(kChoices);
  app.add_option("--recompute", flags.recompute, "none, full or no-attention (default none)")
      ->check(CLI::IsMember(strings(kRecomputes)))
      ->group(kChoices);
  app.add_option("--qkv", flags.qkv,
                 "where the QKV projection runs: pre or attn (default attn with --recompute no-attention, else pre)")
      ->check(CLI::IsMember(strings(kQkvPlaces)))
      ->group(kChoices);
  app.add_option("--residual", flags.residual,
                 "how the residual passes attention elsewhere: through its rank or direct (default through)")
      ->check(CLI::IsMember(strings(kResidualPaths)))
      ->group(kChoices);
  app.add_option("--weights", flags.weights,
                 "shipped QKV weights: per-microbatch, or once per layer and rank (default per-microbatch)")
      ->check(CLI::IsMember(strings(kWeightTrips)))
      ->group(kChoices);
  app.add_option("--slice-cut", flags.slice_cut, "slices of equal tokens or equal compute (default tokens)")
      ->check(CLI::IsMember(strings(kSliceCuts)))
      ->group(kChoices);
  app.add_option(
         "--eviction", flags.eviction,
         "when an activation leaves for a partner's memory: as its slot is needed (late) or an op ahead (early) "
         "(default late)")
      ->check(CLI::IsMember(strings(kEvictions)))
      ->group(kChoices);
  app.add_option("--head", flags.head, "LM head: untied, or tied to the token table (default untied)")
      ->check(CLI::IsMember(strings(kHeads)))
      ->group(kChoices);
  app.add_flag("--pattern-only", flags.pattern_only, "the repeated pattern alone, not squeezed")->group(kChoices);
  app.add_flag(
         "--post-validation", flags.post_validation,
         "optimizer steps do not wait for the global norm; it validates them behind, and undoes or redoes what it "
         "does not let stand")
      ->group(kChoices);
  app.add_option("--memory-limit", flags.memory_limit, "peak activations of a rank, in micro-batches of a 1/P stage")
      ->group(kChoices);
  app.add_option(
         "--times", flags.times,
         "time of a 1/P share of the model, F=1,B=1,W=1; or per layer, pre=0.5,attn=4,post=0.5 (default F=1,B=1,W=1)")
      ->group(kTimes);
  app.add_option("--latency", flags.latency, "time of a transfer between ranks, in the unit of --times (default 0)")
      ->group(kTimes);
}

Recompute recompute_of(const ScheduleFlags& flags) {
  return pick(flags.recompute, kRecomputes, Recompute::kNone);
}

Result<TimesSpec> resolve_times(const ScheduleFlags& flags) {
  TimesSpec times;
  if (flags.times && flags.times->ends_with(".json")) {
    PLAIT_TRY(const std::string json, read_file(*flags.times));
    PLAIT_TRY(times, parse_times_json(json));
  } else if (flags.times) {
    PLAIT_TRY(times, parse_times(*flags.times));
  }
  if (flags.latency) {
    PLAIT_TRY(times.latency, parse_decimal(*flags.latency));
    if (times.latency.digits < 0)
      return make_error(ErrorCode::kInvalidArgument, "times.negative", "--latency {}: not negative, please",
                        *flags.latency);
  }
  return times;
}

Result<ScheduleRequest> resolve_flags(const ScheduleFlags& flags) {
  if (!flags.ranks)
    return make_error(ErrorCode::kInvalidArgument, "flags.missing", "--ranks is missing: how many devices?");
  ScheduleRequest request{
      .shape = {.ranks = *flags.ranks,
                .microbatches = flags.microbatches,
                .chunks = flags.chunks,
                .slices = flags.slices,
                .layers = flags.layers,
                .folds = flags.folds,
                .repeats = flags.repeats,
                .groups = flags.groups,
                .rounds = flags.rounds,
                .prefetch = flags.prefetch,
                .replicas = flags.replicas,
                .replica_state = pick(flags.replica_state, kReplicaStates, ReplicaState::kWhole),
                .tying = pick(flags.head, kHeads, HeadTying::kUntied),
                .order = pick(flags.order, kOrders, Order::kMegatron),
                .recompute = recompute_of(flags),
                .qkv = flags.qkv ? std::optional(pick(flags.qkv, kQkvPlaces, QkvPlace::kPre)) : std::nullopt,
                .residual = pick(flags.residual, kResidualPaths, ResidualPath::kThrough),
                .weights = pick(flags.weights, kWeightTrips, WeightTrips::kPerMicrobatch),
                .squeeze = flags.pattern_only ? Squeeze::kPatternOnly : Squeeze::kFull,
                .reshard = pick(flags.reshard, kReshards, Reshard::kAfterForward),
                .slice_cut = pick(flags.slice_cut, kSliceCuts, SliceCut::kEqualTokens),
                .eviction = pick(flags.eviction, kEvictions, Eviction::kLate),
                .memory_limit = flags.memory_limit}};
  ScheduleShape& shape = request.shape;
  if (shape.repeats) {
    shape.folds = shape.folds.value_or(kDefaultFolds);
    PLAIT_TRY_VOID(derive_microbatches("--repeats", "R F P", product({*shape.repeats, *shape.folds, shape.ranks}),
                                       shape.microbatches));
  }
  if (shape.rounds)
    PLAIT_TRY_VOID(derive_microbatches("--rounds", "R P", product({*shape.rounds, shape.ranks}), shape.microbatches));
  if (!shape.microbatches)
    return make_error(ErrorCode::kInvalidArgument, "flags.missing",
                      "--microbatches is missing (or --repeats, or --rounds, which derive it)");
  PLAIT_TRY(request.times, resolve_times(flags));
  PLAIT_TRY_VOID(make_exact(request));
  return request;
}

}  // namespace plait
