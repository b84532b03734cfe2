#pragma once

#include "plait/run/train/trainer.h"

#include "tests/run/engine/engine_support.h"
#include "tests/run/engine/poisoned_kernels.h"

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

/// Runs over rows of which some spoil the loss or the gradient.
namespace plait::testing {

constexpr std::int64_t kSpoiler = 28;  ///< the token that does it
constexpr std::int64_t kRowsPerStep = 8;

/// Rows for some steps, in order; those of the steps in `bad` hold the spoiler, those in `left_out` are not there.
inline TokenRows spoilt_rows(std::int64_t num_steps, const std::set<std::int64_t>& bad,
                             const std::set<std::int64_t>& left_out = {}) {
  constexpr std::int64_t kRow = 9;
  TokenRows rows{.source = "rows", .tokens = {}, .counts = {}, .stride = kRow, .row_size = kRow};
  for (std::int64_t step = 0; step < num_steps; ++step) {
    if (left_out.contains(step)) continue;
    for (std::int64_t i = 0; i < kRowsPerStep * kRow; ++i)
      rows.tokens.push_back(static_cast<TokenId>((step * 31 + i * i + i / 3) % kSpoiler));
    if (bad.contains(step)) rows.tokens[rows.tokens.size() - 2 * kRow] = kSpoiler;
    rows.num_rows += kRowsPerStep;
  }
  return rows;
}

/// The steps of a tiny run over four ranks.
inline Result<TrainJob> spoilt_job(TokenRows rows, StepOrder steps = StepOrder::kBehindNorm) {
  PLAIT_TRY(Schedule schedule, build_schedule("1f1b", {.ranks = 4, .microbatches = 4, .layers = 4}));
  schedule.layout.steps = steps;
  PLAIT_TRY(Program lowered, lower(schedule));
  PLAIT_TRY(VerifiedProgram program, prove(std::move(lowered)));
  const Split split = split_rows(rows.num_rows, 0);
  return TrainJob{.model = tiny_config(4, HeadTying::kUntied),
                  .program = std::move(program),
                  .forward = {},
                  .other = {},
                  .rows = std::move(rows),
                  .split = split,
                  .initial = {}};
}

inline TrainOptions spoilt_options(std::filesystem::path out, std::int64_t steps, OnNan on_nan, Spoilt spoilt) {
  TrainOptions options{
      .out = std::move(out),
      .steps = steps,
      .microbatch_size = 2,
      .lr = {.lr = 1e-2, .min_lr = 0, .warmup_steps = 0, .total_steps = 100, .decay = LrDecay::kConstant},
      .seed = 3,
      .order = RowOrder::kAsIs,
      .checkpoint_every = 2,
      .on_nan = on_nan,
      .tokenizer = "ids"};
  options.engine.kernels = poisoned_kernels(kSpoiler, spoilt);
  return options;
}

class Notes final : public TrainObserver {
 public:
  void on_start(std::int64_t, std::int64_t) override {}
  void on_step(const StepMetrics& metrics) override { steps.push_back(metrics.step); }
  void on_checkpoint(const std::filesystem::path&) override {}
  void on_note(const std::string& note) override { notes.push_back(note); }
  std::vector<std::int64_t> steps;
  std::vector<std::string> notes;
};

}  // namespace plait::testing
