#include "plait/cli/schedule_source.h"

#include "plait/ir/lower.h"
#include "plait/ir/recompute.h"

#include <filesystem>
#include <utility>

namespace plait {
namespace {

/// Sizes that are given beside a file must be the file's own.
Result<> check_sizes(const std::string& file, const Layout& layout, const ScheduleFlags& flags) {
  const int stages_per_rank = layout.num_stages() / std::max(layout.num_ranks, 1);
  const std::tuple<const char*, std::optional<int>, int> sizes[] = {
      {"--ranks", flags.ranks, layout.num_ranks},
      {"--microbatches", flags.microbatches, layout.num_microbatches},
      {"--slices", flags.slices, layout.num_slices},
      {"--chunks", flags.chunks, stages_per_rank}};
  for (const auto& [flag, given, own] : sizes) {
    if (given && *given != own)
      return make_error(ErrorCode::kInvalidArgument, "flags.conflict", "{} {}, but {} is for {}; leave the flag out",
                        flag, *given, file, own);
  }
  const std::pair<const char*, bool> named_only[] = {
      {"--folds", flags.folds.has_value()},         {"--repeats", flags.repeats.has_value()},
      {"--groups", flags.groups.has_value()},       {"--rounds", flags.rounds.has_value()},
      {"--prefetch", flags.prefetch.has_value()},   {"--reshard", flags.reshard.has_value()},
      {"--replicas", flags.replicas.has_value()},   {"--replica-state", flags.replica_state.has_value()},
      {"--order", flags.order.has_value()},         {"--qkv", flags.qkv.has_value()},
      {"--residual", flags.residual.has_value()},   {"--weights", flags.weights.has_value()},
      {"--slice-cut", flags.slice_cut.has_value()}, {"--eviction", flags.eviction.has_value()},
      {"--pattern-only", flags.pattern_only}};
  for (const auto& [flag, given] : named_only) {
    if (given)
      return make_error(ErrorCode::kInvalidArgument, "flags.conflict",
                        "{} shapes a named schedule; the order of {} is written already", flag, file);
  }
  return {};
}

/// Adds the recomputes that the flags ask for to a file's schedule.
Result<ScheduleOrProgram> with_recompute(const std::string& file, ScheduleOrProgram content,
                                         const ScheduleFlags& flags) {
  const Recompute what = recompute_of(flags);
  if (what == Recompute::kNone) return content;
  auto* schedule = std::get_if<Schedule>(&content);
  if (schedule == nullptr)
    return make_error(ErrorCode::kInvalidArgument, "flags.conflict",
                      "--recompute: {} holds a program, whose ops stand already; give the schedule that it was lowered "
                      "from",
                      file);
  PLAIT_TRY(Schedule again, add_recompute(std::move(*schedule), what));
  return ScheduleOrProgram(std::move(again));
}

/// Cuts a file's schedule for the model that the flags describe.
Result<ScheduleOrProgram> for_model(const std::string& file, ScheduleOrProgram content, const ScheduleFlags& flags) {
  const Layout& own = std::visit([](const auto& held) -> const Layout& { return held.layout; }, content);
  const int num_layers = flags.layers.value_or(own.num_layers);
  const HeadTying tying = flags.head ? (*flags.head == "tied" ? HeadTying::kTied : HeadTying::kUntied) : own.tying;
  if (num_layers == own.num_layers && tying == own.tying) return content;
  const auto* schedule = std::get_if<Schedule>(&content);
  if (schedule == nullptr)
    return make_error(ErrorCode::kInvalidArgument, "flags.conflict",
                      "{} holds a program, which is cut for {} layers and {} head already; give the schedule that it "
                      "was lowered from",
                      file, own.num_layers, own.tying == HeadTying::kTied ? "a tied" : "an untied");
  PLAIT_TRY(Schedule bound, rebind(*schedule, num_layers, tying));
  return ScheduleOrProgram(std::move(bound));
}

/// Lets steps be validated behind the norm if the flags say so.
Result<ScheduleOrProgram> with_validation(ScheduleOrProgram content, const ScheduleFlags& flags) {
  if (!flags.post_validation) return content;
  const Layout& layout = std::visit([](const auto& held) -> const Layout& { return held.layout; }, content);
  if (layout.mode == Mode::kForward)
    return make_error(ErrorCode::kInvalidArgument, "flags.conflict",
                      "--post-validation: {} has forwards only, and no steps", layout.name);
  if (auto* program = std::get_if<Program>(&content)) {
    PLAIT_TRY(Program validated, add_validation(std::move(*program)));
    return ScheduleOrProgram(std::move(validated));
  }
  std::get<Schedule>(content).layout.steps = StepOrder::kPostValidated;
  return content;
}

Result<LoadedSchedule> load_file(const std::string& path, const ScheduleFlags& flags, const TorchCsvOptions& csv) {
  PLAIT_TRY(ScheduleFile file, read_schedule_file(path, csv));
  LoadedSchedule loaded{.content = std::move(file.content), .file_format = file.format};
  PLAIT_TRY_VOID(check_sizes(path, loaded.layout(), flags));
  PLAIT_TRY(loaded.content, for_model(path, std::move(loaded.content), flags));
  PLAIT_TRY(loaded.content, with_recompute(path, std::move(loaded.content), flags));
  PLAIT_TRY(loaded.content, with_validation(std::move(loaded.content), flags));
  PLAIT_TRY(loaded.times, resolve_times(flags));
  PLAIT_TRY(loaded.ticks_per_unit, exact_ticks(loaded.layout(), loaded.times));
  return loaded;
}

}  // namespace

const Layout& LoadedSchedule::layout() const {
  return std::visit([](const auto& held) -> const Layout& { return held.layout; }, content);
}

const std::vector<Row>& LoadedSchedule::rows() const {
  return std::visit([](const auto& held) -> const std::vector<Row>& { return held.rows; }, content);
}

Result<LoadedSchedule> load_schedule(const std::string& name_or_file, const ScheduleFlags& flags,
                                     const TorchCsvOptions& csv) {
  const auto known = find_schedule(name_or_file);
  if (known) {
    PLAIT_TRY(ScheduleRequest request, resolve_flags(flags));
    PLAIT_TRY(Schedule schedule, build_schedule(name_or_file, request.shape));
    schedule.layout.newline = Newline::kCrlf;  // as PyTorch's own writer ends the lines of a CSV
    // The shape's ticks are for building; how many stages share a time is known only now.
    PLAIT_TRY(const std::int64_t ticks, exact_ticks(schedule.layout, request.times));
    PLAIT_TRY(ScheduleOrProgram content, with_validation(std::move(schedule), flags));
    return LoadedSchedule{.content = std::move(content), .times = std::move(request.times), .ticks_per_unit = ticks};
  }
  const bool looks_like_a_path = name_or_file.find_first_of("./") != std::string::npos;
  std::error_code ignored;
  if (!looks_like_a_path && !std::filesystem::exists(name_or_file, ignored)) return known.error();
  return load_file(name_or_file, flags, csv);
}

Result<Program> lowered(ScheduleOrProgram content) {
  if (auto* program = std::get_if<Program>(&content)) return std::move(*program);
  return lower(std::get<Schedule>(content));
}

}  // namespace plait
