#include "plait/run/train/compare.h"

#include "plait/run/engine/engine_state.h"
#include "plait/run/engine/process_group.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace plait {
namespace {

StepResult median(std::vector<StepResult>& steps) {
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end(),
                   [](const StepResult& a, const StepResult& b) { return a.duration < b.duration; });
  return std::move(*middle);
}

/// The engine's weights and moments, on all processes.
Result<std::map<std::string, ParameterState>> state_of(const Engine& engine, ProcessGroup* processes) {
  PLAIT_TRY(auto state, engine.save());
  if (processes == nullptr) return state;
  PLAIT_TRY(const std::string told, processes->broadcast(processes->index() == 0 ? encode(state) : std::string()));
  return decode_state(told);
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
  PLAIT_TRY(const auto state, state_of(own, options.processes.get()));
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
