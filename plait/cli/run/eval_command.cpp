#include "plait/cli/run/commands.h"
#include "plait/cli/run/data_flags.h"
#include "plait/cli/run/progress.h"
#include "plait/cli/run/train_flags.h"
#include "plait/run/train/evaluate.h"
#include "plait/run/train/model_source.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace plait::cli {
namespace {

struct EvalFlags {
  DataFlags data;
  std::string model;
  std::int64_t microbatch_size = 8;
  double last_fraction = 1;
  std::string dtype = "fp32";
  std::string format = "table";
  void add_to(FlagSet& flags) {
    flags.add("Model", "--model", model, "DIR", "a run, a checkpoint or a Hugging Face directory; must be given");
    flags.add_choice("Model", "--dtype", dtype, {"fp32", "bf16", "fp64"}, "compute type");
    data.add_to(flags);
    flags.add("Data", "--microbatch-size", microbatch_size, "ROWS", "rows at a time");
    flags.add("Data", "--last-fraction", last_fraction, "FRACTION", "use only the last part of the rows");
    flags.add_choice("General", "--format", format, {"table", "json"}, "of the result");
  }
};

Result<> check(const EvalFlags& f) {
  const auto refuse = [](const std::string& what) { return Error{ErrorCode::kInvalidArgument, "eval.flags", what}; };
  if (f.model.empty()) return refuse("--model is missing: a run, a checkpoint or a Hugging Face directory");
  if (f.microbatch_size < 1)
    return refuse(fmt::format("--microbatch-size {}: at least one row is needed", f.microbatch_size));
  if (!(f.last_fraction > 0 && f.last_fraction <= 1))
    return refuse(fmt::format("--last-fraction {}: must lie in (0, 1]", f.last_fraction));
  return {};
}

Result<int> run(EvalFlags& f, const FlagSet& flags) {
  PLAIT_TRY_VOID(check(f));
  PLAIT_TRY(const ModelSource source, load_model(f.model));
  print_note(source.note);
  use_tokenizer_of(source, f.data);
  if (!flags.given("--seq")) f.data.seq = std::min(f.data.seq, source.config.max_positions);
  PLAIT_TRY(const LoadedData data, load_data(f.data, flags, source.config.vocab_size));
  PLAIT_TRY_VOID(check_vocabulary(data.rows, source.config.vocab_size));
  if (data.rows.row_size - 1 > source.config.max_positions)
    return make_error(ErrorCode::kInvalidArgument, "train.positions",
                      "rows of {} predictions, but the model has {} positions", data.rows.row_size - 1,
                      source.config.max_positions);
  const Split split = split_rows(data.rows.num_rows, f.last_fraction);
  const std::int64_t begin = f.last_fraction < 1 && split.num_validation > 0 ? split.num_train : 0;
  PLAIT_TRY(const ForwardEngine forward,
            make_forward_engine(source.config, source.parameters, compute_type(f.dtype), document_end(f.data)));
  PLAIT_TRY(const Evaluation result,
            evaluate(*forward.engine, forward.program, data.rows, begin, data.rows.num_rows, f.microbatch_size));
  const double seconds = static_cast<double>(result.duration.value()) * 1e-9;
  if (f.format == "json") {
    const nlohmann::ordered_json document{{"loss", result.loss},
                                          {"perplexity", std::exp(result.loss)},
                                          {"tokens", result.tokens},
                                          {"tokens_per_s", static_cast<double>(result.tokens) / seconds},
                                          {"model", source.path.string()}};
    std::fputs((document.dump(2) + "\n").c_str(), stdout);
  } else {
    std::fputs(fmt::format("loss        {} nats per token\nperplexity  {}\ntokens      {}\nmodel       {}\n",
                           result.loss, std::exp(result.loss), result.tokens, source.path.string())
                   .c_str(),
               stdout);
  }
  return 0;
}

}  // namespace

Result<int> eval_command(int argc, const char* const* argv) {
  EvalFlags f;
  FlagSet flags("plait eval", "Loss and perplexity of a model on a text or on token ids.");
  f.add_to(flags);
  PLAIT_TRY(const FlagSet::Outcome outcome, flags.parse(argc, argv));
  if (outcome == FlagSet::Outcome::kHelpPrinted) return 0;
  if (outcome == FlagSet::Outcome::kConfigRequested) {
    std::fputs(flags.config_json().c_str(), stdout);
    return 0;
  }
  return run(f, flags);
}

}  // namespace plait::cli
