#include "plait/run/train/compare.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace plait {
namespace {

StepResult median(std::vector<StepResult>& steps) {
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end(),
                   [](const StepResult& a, const StepResult& b) { return a.duration < b.duration; });
  return std::move(*middle);
}

}  // namespace

Result<Comparison> compare_steps(Engine& own, const VerifiedProgram& other, const ModelConfig& model,
                                 const EngineOptions& options, const std::vector<Microbatch>& microbatches) {
  if (const int expected = other.program().layout.num_microbatches;
      microbatches.size() != static_cast<std::size_t>(expected))
    return make_error(ErrorCode::kInvalidArgument, "train.compare",
                      "{} runs {} micro-batches a step, this run {}; compare with a schedule that runs as many",
                      other.program().layout.name, expected, microbatches.size());
  EngineOptions other_options = options;
  if (other.program().layout.num_slices != own.program().layout.num_slices) other_options.slice_lengths.clear();
  PLAIT_TRY(const std::unique_ptr<Engine> engine, Engine::create(other, model, other_options));
  PLAIT_TRY(const auto state, own.save());
  PLAIT_TRY_VOID(engine->load(state, 1));
  std::vector<StepResult> own_steps;
  std::vector<StepResult> other_steps;
  for (int step = 0; step <= kComparedSteps; ++step) {
    PLAIT_TRY(StepResult of_own, own.train_step(microbatches, 0));
    PLAIT_TRY(StepResult of_other, engine->train_step(microbatches, 0));
    if (step == 0) continue;
    own_steps.push_back(std::move(of_own));
    other_steps.push_back(std::move(of_other));
  }
  return Comparison{.own = median(own_steps), .other = median(other_steps), .other_program = other};
}

}  // namespace plait
