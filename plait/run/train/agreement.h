#pragma once

#include "plait/base/result.h"
#include "plait/run/engine/process_group.h"
#include "plait/run/train/trainer.h"

#include <string>
#include <vector>

namespace plait {

/// Something that all processes of a job must have been given alike. Values may have lines.
struct Fact {
  std::string name;
  std::string value;
};

/// What a run is made of: the program file, schedule, model, initial weights, data, options.
std::vector<Fact> facts_of(const TrainJob& job, const TrainOptions& options, const RunState& start);

/// Compares everyone's facts with those of process 0. A call of all processes.
/// \errors kInvalidArgument "train.processes_differ", on all, with each process that differs and in what
Result<> agree(ProcessGroup& processes, const std::vector<Fact>& facts);

/// Fails on all processes if it fails on one, with the same words. A call of all processes; null: there is one.
Result<> together(ProcessGroup* processes, const Result<>& mine);

/// In what `other` differs from `own`; empty if in nothing.
std::string differences(const std::vector<Fact>& own, const std::vector<Fact>& other);

}  // namespace plait
