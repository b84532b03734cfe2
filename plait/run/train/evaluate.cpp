#include "plait/run/train/evaluate.h"

#include "plait/ir/lower.h"
#include "plait/run/train/batches.h"

#include <utility>

namespace plait {

Result<Evaluation> evaluate(Engine& engine, const VerifiedProgram& forward, const TokenRows& rows, std::int64_t begin,
                            std::int64_t end, std::int64_t microbatch_size) {
  const int num_microbatches = forward.program().layout.num_microbatches;
  double loss_sum = 0;
  Evaluation evaluation;
  for (std::int64_t next = begin; next < end;) {
    const auto microbatches = evaluation_group(rows, next, end, num_microbatches, microbatch_size);
    next += num_microbatches * microbatch_size;
    PLAIT_TRY(const EvalResult result, engine.eval_step(forward, microbatches));
    loss_sum += result.loss_sum;
    evaluation.tokens += result.valid_tokens;
    evaluation.duration += result.duration;
  }
  if (evaluation.tokens == 0)
    return make_error(ErrorCode::kIo, "eval.no_target", "{}: no target counts in rows {} to {}", rows.source, begin,
                      end);
  evaluation.loss = loss_sum / static_cast<double>(evaluation.tokens);
  return evaluation;
}

Result<VerifiedProgram> forward_program(const Layout& layout, const std::vector<Row>& rows) {
  Schedule forwards{.layout = layout, .rows = {}};
  forwards.layout.mode = Mode::kForward;
  for (const Row& row : rows) {
    Row& kept = forwards.rows.emplace_back();
    for (const Instr& instr : row)
      if (const Op* op = std::get_if<Op>(&instr); op != nullptr && op->kind == OpKind::kForward) kept.emplace_back(*op);
  }
  PLAIT_TRY(Program program, lower(forwards));
  return prove(std::move(program));
}

Result<VerifiedProgram> one_rank_forward(int num_layers, HeadTying tying, int num_microbatches) {
  PLAIT_TRY(Layout layout, make_layout({.name = "forward",
                                        .mode = Mode::kForward,
                                        .num_microbatches = num_microbatches,
                                        .num_layers = num_layers,
                                        .tying = tying,
                                        .stages = {layer_range(num_layers, 0, num_layers)},
                                        .homes = {{RankId{0}}}}));
  Row row;
  for (int m = 0; m < num_microbatches; ++m)
    row.emplace_back(
        Op{.kind = OpKind::kForward, .stage = StageId{0}, .microbatch = MicrobatchId{m}, .slice = SliceId{0}});
  PLAIT_TRY(Program program, lower(Schedule{.layout = std::move(layout), .rows = {std::move(row)}}));
  return prove(std::move(program));
}

Result<ForwardEngine> make_forward_engine(const ModelConfig& config,
                                          const std::map<std::string, ParameterState>& parameters, ComputeType type,
                                          std::optional<std::int64_t> document_end) {
  PLAIT_TRY(VerifiedProgram program,
            one_rank_forward(config.num_layers, config.tied_head ? HeadTying::kTied : HeadTying::kUntied, 1));
  // No optimizer runs, and plain SGD keeps no moments.
  const EngineOptions options{.type = type, .optimizer = {.kind = OptimizerKind::kSgd}, .document_end = document_end};
  PLAIT_TRY(std::unique_ptr<Engine> engine, Engine::create(program, config, options));
  std::map<std::string, ParameterState> weights;
  for (const auto& [name, state] : parameters) weights[name].master = state.master;
  PLAIT_TRY_VOID(engine->load(weights, 0));
  return ForwardEngine{.program = std::move(program), .engine = std::move(engine)};
}

}  // namespace plait
