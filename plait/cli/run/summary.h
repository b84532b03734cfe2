#pragma once

#include "plait/base/result.h"
#include "plait/run/data/tokenizer.h"
#include "plait/run/train/trainer.h"

#include <cstdint>
#include <string>

namespace plait::cli {

/// One line that says what is about to run.
std::string describe_run(const TrainJob& job, const TrainOptions& options);

struct SummaryOptions {
  std::int64_t sample_tokens = 200;  ///< 0: no sample
  std::uint64_t seed = 0;
  std::string format = "table";
};

/// The report at the end of a run, on stdout: losses, speed, bubble, memory, the picture of the step, what another
/// schedule costs on the same rows, a sample written by
/// the model in the last checkpoint, and where that is.
Result<> print_summary(const TrainJob& job, const TrainOptions& options, const TrainSummary& summary,
                       const SummaryOptions& print, const Tokenizer* tokenizer);

}  // namespace plait::cli
