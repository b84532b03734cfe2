#include "plait/ir/lower.h"
#include "plait/ir/torch_cells.h"
#include "plait/ir/torch_checks.h"
#include "plait/ir/torch_csv.h"
#include "plait/ir/torch_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <utility>

namespace plait {
namespace {

using enum TorchActionType;

/// A complete file has an action for every stage and micro-batch, so its size bounds the tables that later passes make.
constexpr std::size_t kAlwaysAllowedCells = std::size_t{1} << 20;

std::string stem(std::string_view file_name) {
  const std::size_t slash = file_name.find_last_of('/');
  if (slash != std::string_view::npos) file_name.remove_prefix(slash + 1);
  const std::size_t dot = file_name.find_last_of('.');
  return std::string(file_name.substr(0, dot == 0 ? std::string_view::npos : dot));
}

class Importer {
 public:
  Importer(TorchSheet sheet, std::string_view file_name, const TorchCsvOptions& options)
      : sheet_(std::move(sheet)), file_name_(file_name), options_(options) {}

  Result<TorchCsv> run(std::size_t file_size) {
    find_kinds();
    if (is_comms_) PLAIT_TRY_VOID(check_form_of_comms());
    PLAIT_TRY_VOID(place_stages());
    PLAIT_TRY_VOID(count_microbatches(file_size));
    const bool check_order =
        options_.checks == CsvChecks::kEverything || (options_.checks == CsvChecks::kForVerifier && !is_comms_);
    const TorchShape shape{.file_name = file_name_, .homes = homes_, .num_microbatches = num_microbatches_};
    PLAIT_TRY_VOID(check_ranges(sheet_, shape, check_order ? ActionOrder::kChecked : ActionOrder::kFree));
    if (is_comms_ && options_.checks == CsvChecks::kEverything)
      PLAIT_TRY_VOID(check_transfers(sheet_, shape, has_waits_ ? WaitActions::kPresent : WaitActions::kAbsent));
    return build();
  }

 private:
  [[nodiscard]] Error fail(CellPlace place, std::string_view rule, std::string_view message) const {
    return cell_error(file_name_, place, rule, message);
  }

  template <class Visit>
  void for_each_action(const Visit& visit) const {
    for (const auto& row : sheet_.rows)
      for (const TorchCell& cell : row)
        if (cell.role != CellRole::kIdle) visit(cell);
  }

  void find_kinds() {
    for_each_action([&](const TorchCell& cell) {
      const TorchActionType type = cell.action.type;
      is_comms_ |= !is_compute(type);
      has_reductions_ |= type == kReduceGrad;
      const bool wait = type == kWaitSendF || type == kWaitSendB || type == kWaitReduceGrad;
      if (wait && !first_wait_) first_wait_ = cell;
      if (type == kReduceGrad && &cell == &sheet_.rows[static_cast<std::size_t>(cell.place.row - 1)].back())
        ends_in_reduction_ = cell;
      if ((type == kSendF || type == kSendB || type == kReduceGrad) && !first_waited_for_) first_waited_for_ = cell;
    });
    has_waits_ = options_.version.has_waits();
  }

  Result<> check_form_of_comms() const {
    for (const auto& row : sheet_.rows) {
      for (const TorchCell& cell : row)
        if (cell.role == CellRole::kIdle)
          return fail(cell.place, "csv.idle_cell", "an idle cell; files with transfers (compute_comms) have none");
    }
    if (has_waits_ && first_waited_for_ && !first_wait_)
      return fail(
          first_waited_for_->place, "csv.torch_version",
          fmt::format(
              "{} is never waited for, and the file holds no WAIT action at all; torch 2.15 demands them. For a "
              "file of an older torch give its version, as in --torch-version 2.14",
              to_string(first_waited_for_->action)));
    if (!has_waits_ && first_wait_)
      return fail(first_wait_->place, "csv.torch_version",
                  fmt::format("{}: torch {}.{} has no WAIT actions; they came with 2.15",
                              to_string(first_wait_->action), options_.version.major, options_.version.minor));
    return {};
  }

  Result<> place_stages() {
    std::size_t num_actions = 0;
    std::int32_t last_stage = -1;
    for_each_action([&](const TorchCell& cell) {
      ++num_actions;
      last_stage = std::max(last_stage, cell.action.stage);
    });
    // A stage number beyond the number of actions leaves a gap for certain; do not allocate for it.
    const auto num_stages = std::min(static_cast<std::size_t>(last_stage + 1LL), num_actions + 1);
    homes_.assign(num_stages, kNoRank);
    for (std::size_t rank = 0; rank < sheet_.rows.size(); ++rank) {
      bool has_action = false;
      for (const TorchCell& cell : sheet_.rows[rank]) {
        if (cell.role == CellRole::kIdle) continue;
        has_action = true;
        const auto stage = static_cast<std::size_t>(cell.action.stage);
        if (stage >= num_stages) continue;
        if (homes_[stage] != kNoRank && homes_[stage] != static_cast<std::int32_t>(rank))
          return fail(cell.place, "csv.stage_in_two_rows",
                      fmt::format("{}: stage {} stands in row {} already; a stage lives on one rank",
                                  to_string(cell.action), stage, homes_[stage] + 1));
        homes_[stage] = static_cast<std::int32_t>(rank);
      }
      if (!has_action)
        return fail(CellPlace{.row = static_cast<std::int32_t>(rank + 1), .column = 1}, "csv.empty_rank",
                    fmt::format("rank {} has no action; every rank needs a stage", rank));
    }
    const auto gap = std::find(homes_.begin(), homes_.end(), kNoRank);
    if (gap == homes_.end()) return {};
    return fail(
        place_of_stage(last_stage), "csv.missing_stage",
        fmt::format("the file speaks of stage {}, but stage {} stands nowhere; stages count from 0 without gaps",
                    last_stage, gap - homes_.begin()));
  }

  [[nodiscard]] CellPlace place_of_stage(std::int32_t stage) const {
    std::optional<CellPlace> place;
    for_each_action([&](const TorchCell& cell) {
      if (!place && cell.action.stage == stage) place = cell.place;
    });
    return place.value_or(CellPlace{});
  }

  /// As many as the stage with the most forwards (of distinct micro-batches) has.
  Result<> count_microbatches(std::size_t file_size) {
    std::vector<std::uint64_t> forwards;
    for_each_action([&](const TorchCell& cell) {
      if (cell.action.type == kForward)
        forwards.push_back((static_cast<std::uint64_t>(cell.action.stage) << 32) |
                           static_cast<std::uint32_t>(cell.action.microbatch));
    });
    std::sort(forwards.begin(), forwards.end());
    forwards.erase(std::unique(forwards.begin(), forwards.end()), forwards.end());
    int run = 0;
    for (std::size_t i = 0; i < forwards.size(); ++i) {
      run = i > 0 && (forwards[i] >> 32) == (forwards[i - 1] >> 32) ? run + 1 : 1;
      num_microbatches_ = std::max(num_microbatches_, run);
    }
    if (num_microbatches_ == 0) return fail(CellPlace{}, "csv.no_forward", "the file holds no forward");
    const std::size_t most_cells = std::max(kAlwaysAllowedCells, file_size);
    if (homes_.size() > most_cells / static_cast<std::size_t>(num_microbatches_))
      return fail(CellPlace{}, "csv.size",
                  fmt::format("{} stages x {} micro-batches: a file of this size cannot hold their actions",
                              homes_.size(), num_microbatches_));
    return {};
  }

  Result<TorchCsv> build() {
    const int num_stages = static_cast<int>(homes_.size());
    PLAIT_TRY(auto parts, cut_by_layers(num_stages, num_stages));
    LayoutSpec spec{.name = stem(file_name_),
                    .num_ranks = static_cast<int>(sheet_.rows.size()),
                    .num_microbatches = num_microbatches_,
                    .num_layers = num_stages,
                    .stages = std::move(parts),
                    .homes = {}};
    for (const std::int32_t home : homes_) spec.homes.push_back({RankId{home}});
    PLAIT_TRY(Layout layout, make_layout(spec));
    layout.newline = sheet_.newline;
    if (is_comms_) torch_rules::make_sharded(layout);

    std::vector<Row> rows(sheet_.rows.size());
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      rows[rank].reserve(sheet_.rows[rank].size());
      for (const TorchCell& cell : sheet_.rows[rank]) PLAIT_TRY_VOID(add(cell, rank, rows[rank]));
      sheet_.rows[rank] = {};
    }
    if (!is_comms_)
      return TorchCsv{.content = Schedule{.layout = std::move(layout), .rows = std::move(rows)},
                      .ignored = std::move(sheet_.ignored)};

    if (!has_waits_) rows = add_send_waits(layout, std::move(rows));
    const bool implicit = !options_.version.has_reduce_grad() && !has_reductions_;
    // Where a row ends just as the implicit reductions would, export could not tell the two apart.
    if (!options_.version.has_reduce_grad() && ends_in_reduction_)
      return fail(
          ends_in_reduction_->place, "csv.torch_version",
          fmt::format(
              "{}: torch {}.{} reduces behind the last action by itself; it has no REDUCE_GRAD, which came with 2.10",
              to_string(ends_in_reduction_->action), options_.version.major, options_.version.minor));
    Program program{.layout = std::move(layout), .rows = std::move(rows)};
    torch_rules::append_implicit(program,
                                 implicit ? torch_rules::Reductions::kImplicit : torch_rules::Reductions::kInRows);
    return TorchCsv{.content = std::move(program), .ignored = std::move(sheet_.ignored)};
  }

  Result<> add(const TorchCell& cell, std::size_t rank, Row& row) const {
    if (cell.role == CellRole::kIdle) {
      row.emplace_back(Idle{});
      return {};
    }
    if (cell.role == CellRole::kFirstOfPair) row.emplace_back(Pair{});
    const TorchAction& action = cell.action;
    const StageId stage{action.stage};
    const MicrobatchId microbatch{action.microbatch};
    const GroupId group{action.stage};  // one group per stage, in the order of the stages
    const auto op = [&](OpKind kind) {
      row.emplace_back(Op{.kind = kind, .stage = stage, .microbatch = microbatch, .slice = {}});
    };
    switch (action.type) {
      case kForward: op(OpKind::kForward); return {};
      case kBackwardInput: op(OpKind::kBackwardInput); return {};
      case kBackwardWeight: op(OpKind::kBackwardWeight); return {};
      case kBackward: op(OpKind::kBackward); return {};
      case kUnshard:
        row.emplace_back(Collective{.kind = CollectiveKind::kAllGather,
                                    .ranks = torch_rules::own_set(rank),
                                    .root = {},
                                    .value = Value::weight(group)});
        return {};
      case kReshard: row.emplace_back(Free{.value = Value::weight(group)}); return {};
      case kReduceGrad:
        row.emplace_back(torch_rules::reduction(rank, group));
        if (!has_waits_) row.emplace_back(torch_rules::reduction_wait(group));
        return {};
      case kWaitReduceGrad: row.emplace_back(torch_rules::reduction_wait(group)); return {};
      case kSendF:
      case kRecvF:
      case kSendB:
      case kRecvB:
      case kWaitSendF:
      case kWaitSendB: return transfer(cell, row);
    }
    return {};
  }

  Result<> transfer(const TorchCell& cell, Row& row) const {
    const TorchAction& action = cell.action;
    const bool to_next = action.type == kSendF || action.type == kWaitSendF || action.type == kRecvB;
    const std::int32_t other = to_next ? action.stage + 1 : action.stage - 1;
    if (other < 0 || static_cast<std::size_t>(other) >= homes_.size())
      return fail(cell.place, "csv.no_neighbour",
                  fmt::format("{}: stage {} is the {} one and has no such neighbour", to_string(action), action.stage,
                              to_next ? "last" : "first"));
    const std::int32_t peer = homes_[static_cast<std::size_t>(other)];
    if (peer == homes_[static_cast<std::size_t>(action.stage)])
      return fail(cell.place, "csv.no_neighbour",
                  fmt::format("{}: stage {} is on the same rank, so nothing is transferred", to_string(action), other));
    const EdgeId edge{std::min(action.stage, other)};
    const bool forward = action.type == kSendF || action.type == kRecvF || action.type == kWaitSendF;
    const MicrobatchId microbatch{action.microbatch};
    const Value value = forward ? Value::activation(edge, microbatch, {}) : Value::gradient(edge, microbatch, {});
    if (action.type == kSendF || action.type == kSendB)
      row.emplace_back(Send{.value = value, .peer = RankId{peer}});
    else if (action.type == kRecvF || action.type == kRecvB)
      row.emplace_back(Recv{.value = value, .peer = RankId{peer}});
    else
      row.emplace_back(WaitSend{.value = value, .peer = RankId{peer}});
    return {};
  }

  static constexpr std::int32_t kNoRank = -1;

  TorchSheet sheet_;
  std::string_view file_name_;
  TorchCsvOptions options_;
  bool is_comms_ = false;
  bool has_waits_ = true;
  bool has_reductions_ = false;
  std::optional<TorchCell> first_wait_;
  std::optional<TorchCell> first_waited_for_;
  std::optional<TorchCell> ends_in_reduction_;
  std::vector<std::int32_t> homes_;  ///< per stage
  int num_microbatches_ = 0;
};

}  // namespace

Result<TorchVersion> parse_torch_version(std::string_view text) {
  const auto refused = [&] {
    return make_error(ErrorCode::kInvalidArgument, "csv.torch_version",
                      "'{}' is no version of PyTorch; write it as 2.15", text);
  };
  int numbers[3] = {0, 0, 0};
  int count = 0;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (count < 3) {
    const auto [stop, status] = std::from_chars(at, end, numbers[count]);
    if (status != std::errc{} || numbers[count] < 0) return refused();
    ++count;
    at = stop;
    if (at == end) break;
    if (*at != '.') return refused();
    ++at;
  }
  if (count < 2 || at != end) return refused();
  const TorchVersion version{.major = numbers[0], .minor = numbers[1]};
  if (version < TorchVersion{.major = 2, .minor = 6})
    return make_error(ErrorCode::kUnsupported, "csv.torch_version",
                      "torch {} wrote its schedules in another notation; 2.6 and later can be read and written", text);
  return version;
}

Result<TorchCsv> import_torch_csv(std::string_view text, std::string_view file_name, const TorchCsvOptions& options) {
  PLAIT_TRY(TorchSheet sheet, read_torch_sheet(text, file_name, options.reading));
  return Importer(std::move(sheet), file_name, options).run(text.size());
}

}  // namespace plait
