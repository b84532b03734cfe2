#include "plait/cli/run/schedule_choice.h"

#include "plait/cli/schedule_source.h"
#include "plait/run/train/evaluate.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/slice_lengths.h"

#include <algorithm>
#include <utility>

namespace plait::cli {
namespace {

constexpr int kDefaultMicrobatches = 4;
constexpr int kDefaultLayers = 4;
constexpr int kMostTries = 16;  ///< times the ranks: how far to look for sizes that fit
constexpr const char* kNothing = "none";
constexpr const char* kDefaultOther = "1f1b";

/// Unit and default of a flag that schedule_flags knows without them.
void complete(FlagSet& flags, const char* flag, const char* unit, int value) {
  flags.app().get_option(flag)->type_name(unit)->default_str(std::to_string(value));
}

template <class T>
nlohmann::ordered_json value_or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace

void ScheduleChoice::add_to(FlagSet& flags) {
  flags.add("Schedule", "--schedule", name, "NAME|FILE",
            "a registered schedule, or a file in the text format or PyTorch's CSV");
  add_schedule_flags(flags.app(), shape);
  complete(flags, "--ranks", "RANKS", default_ranks);
  complete(flags, "--microbatches", "COUNT", kDefaultMicrobatches);
  complete(flags, "--layers", "LAYERS", kDefaultLayers);
  const auto print = [&](const char* key, auto& field) {
    flags.add_printer(key, [&field] { return value_or_null(field); });
  };
  print("ranks", shape.ranks);
  print("microbatches", shape.microbatches);
  print("chunks", shape.chunks);
  print("slices", shape.slices);
  print("layers", shape.layers);
  print("repeats", shape.repeats);
  print("rounds", shape.rounds);
  print("folds", shape.folds);
  print("groups", shape.groups);
  print("prefetch", shape.prefetch);
  print("reshard", shape.reshard);
  print("replicas", shape.replicas);
  print("replica-state", shape.replica_state);
  print("order", shape.order);
  print("recompute", shape.recompute);
  print("qkv", shape.qkv);
  print("residual", shape.residual);
  print("weights", shape.weights);
  print("slice-cut", shape.slice_cut);
  print("eviction", shape.eviction);
  print("head", shape.head);
  print("memory-limit", shape.memory_limit);
  flags.add_printer("post-validation", [this] { return nlohmann::ordered_json(shape.post_validation); });
}

void ScheduleChoice::add_compare_to(FlagSet& flags) {
  flags.add("Schedule", "--compare", compare, "NAME|none",
            "run a few steps of this one too at the end, and say what differs; default: 1f1b where no --schedule is "
            "given, else none");
}

bool ScheduleChoice::fill_sizes() {
  const auto info = find_schedule(name);
  if (!info) {  // a file has sizes of its own
    shape.layers = shape.layers.value_or(kDefaultLayers);
    return true;
  }
  if (!shape.ranks) shape.ranks = default_ranks;
  const bool count_given = shape.microbatches || shape.repeats || shape.rounds;
  const int most = kMostTries * std::max(*shape.ranks, 1);
  const int most_layers = shape.layers.value_or(most);
  const int most_microbatches = count_given ? kDefaultMicrobatches : most;
  for (int layers = shape.layers.value_or(kDefaultLayers); layers <= most_layers; ++layers) {
    for (int microbatches = kDefaultMicrobatches; microbatches <= most_microbatches; ++microbatches) {
      ScheduleFlags tried = shape;
      tried.layers = layers;
      if (!count_given) tried.microbatches = microbatches;
      const auto request = resolve_flags(tried);
      if (!request || !(*info)->supports(request->shape)) continue;
      shape = tried;
      return true;
    }
  }
  if (!shape.layers) shape.layers = kDefaultLayers;
  if (!count_given) shape.microbatches = kDefaultMicrobatches;
  return false;
}

void ScheduleChoice::fill_defaults(const FlagSet& flags) {
  const bool is_free = !flags.given("--schedule") && name == kDefaultSchedule;
  if (compare.empty()) compare = is_free ? kDefaultOther : kNothing;
  const ScheduleFlags given = shape;
  if (fill_sizes() || !is_free) return;  // what does not fit is refused by the schedule, which says why
  if (!given.folds) {
    shape = given;
    shape.folds = 1;
    if (fill_sizes()) return;
  }
  shape = given;
  name = kDefaultOther;
  fill_sizes();
}

Result<std::optional<VerifiedProgram>> choose_other(const ScheduleChoice& choice, const VerifiedProgram& own,
                                                    const ModelConfig& model) {
  const Layout& layout = own.program().layout;
  if (choice.compare == kNothing || choice.compare == layout.name) return std::optional<VerifiedProgram>();
  ScheduleChoice other{.name = choice.compare, .shape = {}, .compare = {}};
  other.shape.ranks = layout.num_ranks;
  other.shape.microbatches = layout.num_microbatches;
  other.shape.recompute = choice.shape.recompute;
  PLAIT_TRY(ChosenSchedule chosen, choose_schedule(other, model));
  return std::optional(std::move(chosen.program));
}

Result<ChosenSchedule> choose_schedule(const ScheduleChoice& choice, const ModelConfig& model) {
  ScheduleFlags shape = choice.shape;
  shape.layers = model.num_layers;
  shape.head = model.tied_head ? "tied" : "untied";
  PLAIT_TRY(LoadedSchedule loaded, load_schedule(choice.name, shape));
  auto forward = forward_program(loaded.layout(), loaded.rows());
  PLAIT_TRY(Program program, lowered(std::move(loaded.content)));
  PLAIT_TRY(VerifiedProgram verified, prove(std::move(program)));
  ChosenSchedule chosen{.program = std::move(verified), .forward = {}};
  if (forward) chosen.forward = *std::move(forward);
  return chosen;
}

Result<std::vector<std::int64_t>> slice_lengths(const ScheduleChoice& choice, const Layout& layout,
                                                const ModelConfig& model, std::int64_t num_tokens) {
  if (choice.shape.slice_cut != "compute" || layout.num_slices == 1) return std::vector<std::int64_t>();
  // The cost is written for an MLP of two matrices; a gated one has three.
  const std::int64_t mlp = model.family == ModelFamily::kGpt2 ? model.ffn_size : 3 * model.ffn_size / 2;
  const SliceCost cost = slice_cost({.layers = model.num_layers,
                                     .hidden = static_cast<int>(model.hidden_size),
                                     .heads = static_cast<int>(model.num_heads),
                                     .head_size = static_cast<int>(model.head_dim),
                                     .mlp = static_cast<int>(mlp),
                                     .vocabulary = static_cast<int>(model.vocab_size)});
  PLAIT_TRY(const std::vector<int> lengths,
            balanced_slice_lengths(static_cast<int>(num_tokens), layout.num_slices, cost));
  return std::vector<std::int64_t>(lengths.begin(), lengths.end());
}

}  // namespace plait::cli
