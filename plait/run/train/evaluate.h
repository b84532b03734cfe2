#pragma once

#include "plait/base/result.h"
#include "plait/run/data/token_rows.h"
#include "plait/run/engine/engine.h"
#include "plait/verify/verify.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace plait {

/// Mean loss over some rows.
struct Evaluation {
  double loss = 0;  ///< nats per token that counts
  std::int64_t tokens = 0;
  Nanos duration;
};

/// Runs rows [begin, end) through the forwards of an engine.
/// \errors kIo "eval.no_target" if no target counts; the engine's
Result<Evaluation> evaluate(Engine& engine, const VerifiedProgram& forward, const TokenRows& rows, std::int64_t begin,
                            std::int64_t end, std::int64_t microbatch_size);

/// The forwards of a schedule or program as a program of its own: same stages, same homes, same order.
/// \errors kInvalidSchedule where the forwards do not stand alone, because they need routes that are there for training
Result<VerifiedProgram> forward_program(const Layout& layout, const std::vector<Row>& rows);

/// Forwards of a whole model on one rank.
Result<VerifiedProgram> one_rank_forward(int num_layers, HeadTying tying, int num_microbatches);

/// A one-rank engine for forwards, with weights by name.
struct ForwardEngine {
  VerifiedProgram program;
  std::unique_ptr<Engine> engine;
};
Result<ForwardEngine> make_forward_engine(const ModelConfig& config,
                                          const std::map<std::string, ParameterState>& parameters, ComputeType type,
                                          std::optional<std::int64_t> document_end = {});

}  // namespace plait
