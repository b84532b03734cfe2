#pragma once

#include "plait/base/result.h"
#include "plait/cli/run/flags.h"
#include "plait/cli/schedule_flags.h"
#include "plait/run/model/config.h"
#include "plait/verify/verify.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plait::cli {

inline constexpr const char* kDefaultSchedule = "helixpipe";

/// --schedule and the flags of its shape, with the defaults of a run.
struct ScheduleChoice {
  std::string name = kDefaultSchedule;
  ScheduleFlags shape;
  int default_ranks = 2;
  std::string compare;  ///< a registered schedule, "none", or empty: 1f1b where no --schedule was given, else none
  void add_to(FlagSet& flags);
  /// --compare, for commands that run another schedule too.
  void add_compare_to(FlagSet& flags);
  /// Sizes that were not given and that the schedule does not bring along: the smallest it takes from those of the default
  /// run on. Without --schedule: HelixPipe, with one fold where two do not fit the given sizes, and else 1F1B. Call after
  /// the parse.
  void fill_defaults(const FlagSet& flags);

 private:
  bool fill_sizes();  ///< whether the schedule takes what results
};

struct ChosenSchedule {
  VerifiedProgram program;
  /// The forwards alone, for evaluation on the same ranks; none where they need routes that the schedule wrote for training.
  std::optional<VerifiedProgram> forward;
};

/// The schedule of --compare over the same ranks, micro-batches and model, with the same recompute; none where there is
/// nothing to compare with.
/// \errors those of choose_schedule
Result<std::optional<VerifiedProgram>> choose_other(const ScheduleChoice& choice, const VerifiedProgram& own,
                                                    const ModelConfig& model);

/// Builds or reads, binds to the model, lowers and proves.
/// \errors those of load_schedule; kInvalidSchedule if the program does not pass the verifier
Result<ChosenSchedule> choose_schedule(const ScheduleChoice& choice, const ModelConfig& model);

/// Tokens of each slice under --slice-cut compute; empty = equal ones.
/// \errors kInvalidArgument "slices.too_many" if a slice would be empty
Result<std::vector<std::int64_t>> slice_lengths(const ScheduleChoice& choice, const Layout& layout,
                                                const ModelConfig& model, std::int64_t num_tokens);

}  // namespace plait::cli
