#include "plait/run/train/agreement.h"

#include "plait/ir/text.h"
#include "plait/run/engine/byte_stream.h"
#include "plait/run/train/durable_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string_view>
#include <utility>

namespace plait {
namespace {

/// Checksum of this program's file: what two builds tell each other need not mean the same.
std::string own_digest() {
  const auto digest = digest_file("/proc/self/exe");
  return digest ? fmt::format("{} bytes, CRC-64 {:016x}", digest->bytes, digest->crc) : "not readable";
}

std::string digest_of(const std::map<std::string, ParameterState>& parameters) {
  if (parameters.empty()) return "from the seed";
  std::uint64_t crc = 0;
  for (const auto& [name, state] : parameters) {
    const at::Tensor master = state.master.contiguous();
    crc = crc64({static_cast<const char*>(master.const_data_ptr()), master.nbytes()}, crc64(name, crc));
  }
  return fmt::format("{} tensors, CRC-64 {:016x}", parameters.size(), crc);
}

std::string text_of(const std::optional<VerifiedProgram>& program) {
  return program ? print_text(program->program()) : "none";
}

template <class T>
std::string text_of(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "none";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string difference(const Fact& own, const std::string& other) {
  const std::vector<std::string> mine = lines_of(own.value);
  const std::vector<std::string> theirs = lines_of(other);
  if (mine.size() <= 1 && theirs.size() <= 1) return fmt::format("{} is {}, not {}", own.name, other, own.value);
  std::size_t at = 0;
  while (at < mine.size() && at < theirs.size() && mine[at] == theirs[at]) ++at;
  const auto line = [&](const std::vector<std::string>& lines) {
    return at < lines.size() ? fmt::format("\"{}\"", lines[at]) : "not there";
  };
  return fmt::format("{}, line {}, is {}, not {}", own.name, at + 1, line(theirs), line(mine));
}

std::string encode(const std::vector<Fact>& facts) {
  ByteWriter out;
  for (const Fact& fact : facts) out.put_bytes(fact.name).put_bytes(fact.value);
  return out.take();
}

std::vector<Fact> decode_facts(std::string_view bytes) {
  std::vector<Fact> facts;
  for (ByteReader in(bytes); !in.done();) {
    Fact& fact = facts.emplace_back();
    fact.name = in.get_bytes();
    fact.value = in.get_bytes();
  }
  return facts;
}

}  // namespace

std::vector<Fact> facts_of(const TrainJob& job, const TrainOptions& options, const RunState& start) {
  const OptimizerOptions& optimizer = options.engine.optimizer;
  std::vector<Fact> facts = {
      {"the version", PLAIT_VERSION},
      {"plait-run itself", own_digest()},
      {"the program", print_text(job.program.program())},
      {"the program of evaluations", text_of(job.forward)},
      {"the program to compare with", text_of(job.other)},
      {"the model's config", model_config_json(job.model)},
      {"the initial weights", digest_of(job.initial)},
      {"the data", fmt::format("{} rows of {} tokens with CRC-64 {:016x}, {} for validation", start.data.num_rows,
                               start.data.row_size, start.data.crc, job.split.num_validation)},
      {"the step behind which it begins", std::to_string(start.step)},
  };
  const auto add = [&](const char* flag, const auto& value) { facts.push_back({flag, fmt::format("{}", value)}); };
  add("--steps", options.steps);
  add("--microbatch-size", options.microbatch_size);
  add("--seed", options.seed);
  add("--no-shuffle", options.order != RowOrder::kShuffled);
  add("--lr", options.lr.lr);
  add("--min-lr", options.lr.min_lr);
  add("--warmup", options.lr.warmup_steps);
  add("--lr-schedule", options.lr.decay == LrDecay::kCosine ? "cosine" : "constant");
  add("--eval-every", options.eval_every);
  add("--checkpoint-every", options.checkpoint_every);
  add("--on-nan", to_string(options.on_nan));
  add("--checkpoint-async", options.checkpoint.writing == CheckpointWriting::kAside);
  add("--dtype", start.dtype);
  add("--optimizer", start.optimizer);
  add("--beta1", optimizer.beta1);
  add("--beta2", optimizer.beta2);
  add("--eps", optimizer.eps);
  add("--weight-decay", optimizer.weight_decay);
  add("--decay-all", optimizer.decay == DecayRule::kAll);
  add("--clip", text_of(optimizer.clip));
  add("--document-end", text_of(options.engine.document_end));
  add("--mlp-chunk", text_of(options.engine.stage.mlp_chunk));
  add("--loss-chunk", text_of(options.engine.stage.loss_chunk));
  add("--slice-cut", fmt::format("{}", fmt::join(options.engine.slice_lengths, ",")));
  add("--timeout", options.engine.timeout_seconds);
  facts.push_back({"the emulated link", options.links});
  return facts;
}

std::string differences(const std::vector<Fact>& own, const std::vector<Fact>& other) {
  std::string all;
  for (const Fact& fact : own) {
    const auto found =
        std::find_if(other.begin(), other.end(), [&](const Fact& candidate) { return candidate.name == fact.name; });
    const std::string value = found == other.end() ? "missing" : found->value;
    if (value != fact.value) all += (all.empty() ? "" : "; ") + difference(fact, value);
  }
  return all;
}

Result<> together(ProcessGroup* processes, const Result<>& mine) {
  if (processes == nullptr) return mine;
  PLAIT_TRY(const std::vector<std::string> all, processes->gather(mine ? std::string() : encode(mine.error())));
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& error) { return !error.empty(); });
  PLAIT_TRY(const std::string told, processes->broadcast(first == all.end() ? std::string() : *first));
  return told.empty() ? Result<>() : Result<>(decode_error(told));
}

Result<> agree(ProcessGroup& processes, const std::vector<Fact>& facts) {
  PLAIT_TRY(const std::vector<std::string> all, processes.gather(encode(facts)));
  std::string refusal;
  for (std::size_t process = 1; process < all.size(); ++process)
    if (const std::string what = differences(facts, decode_facts(all[process])); !what.empty())
      refusal += fmt::format("{}process {} was given something else than process 0: {}", refusal.empty() ? "" : ". ",
                             process, what);
  PLAIT_TRY(refusal, processes.broadcast(refusal));
  if (refusal.empty()) return {};
  return make_error(ErrorCode::kInvalidArgument, "train.processes_differ", "{}; start all processes alike", refusal);
}

}  // namespace plait
