#include "plait/cli/run/schedule_choice.h"

#include "plait/cli/schedule_source.h"
#include "plait/run/train/evaluate.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/slice_lengths.h"

#include <utility>

namespace plait::cli {
namespace {

constexpr int kDefaultRanks = 2;
constexpr int kDefaultMicrobatches = 4;
constexpr int kDefaultLayers = 4;

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
  complete(flags, "--ranks", "RANKS", kDefaultRanks);
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
}

void ScheduleChoice::fill_defaults() {
  if (!shape.layers) shape.layers = kDefaultLayers;
  if (!find_schedule(name)) return;  // A file has sizes of its own.
  if (!shape.ranks) shape.ranks = kDefaultRanks;
  if (!shape.microbatches && !shape.repeats && !shape.rounds) shape.microbatches = kDefaultMicrobatches;
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
