#include "plait/run/processes/nccl_lines.h"

#include "plait/base/check.h"
#include "plait/run/engine/byte_stream.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

namespace plait {
namespace {

constexpr std::chrono::milliseconds kLook{50};  // between two looks at the lines: little beside any timeout

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

/// Rests a little longer each time; the first rests are none.
class Rest {
 public:
  void operator()() {
    constexpr int kAtOnce = 100;
    if (++times_ < kAtOnce) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  int times_ = 0;
};

}  // namespace

std::string NcclLine::described() const {
  return fmt::format("rank {}, {}", member_.value(), describe(spec_));
}

std::shared_ptr<QueueMark> NcclLine::issue(std::string what, std::span<const NcclCall> calls) {
  const std::lock_guard lock(mutex_);
  if (stopped_->load()) throw std::runtime_error("stopped because another rank failed");
  try {
    if (!calls.empty()) communicator_->issue(calls, *queue_);
  } catch (const InternalError&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(fmt::format("NCCL, {}, of {}: {}", what, describe(spec_), error.what()));
  }
  // The device has been told once this is over, which needs nobody else: its peers were met when the line was opened.
  Rest rest;
  for (;;) {
    const NcclState state = communicator_->state();
    if (state == NcclState::kReady) break;
    if (state == NcclState::kFailed)
      throw std::runtime_error(fmt::format("NCCL, {}, of {}: {}", what, describe(spec_), communicator_->words()));
    if (stopped_->load()) throw std::runtime_error("stopped because another rank failed");
    rest();
  }
  auto mark = queue_->mark();
  pending_.push_back({.mark = mark, .what = std::move(what), .since = Clock::now()});
  return mark;
}

Result<std::unique_ptr<NcclLines>> NcclLines::open(ProcessGroup& processes, std::shared_ptr<Nccl> nccl,
                                                   const NcclPlan& plan, RankRange here,
                                                   const std::vector<c10::Device>& devices, Options options) {
  std::unique_ptr<NcclLines> lines(new NcclLines(processes, std::move(nccl), std::move(options)));
  const Result<> made = lines->make_ends(plan, here, devices);
  // Others would wait for one that cannot: all hear of it first.
  PLAIT_TRY(const bool fails, processes.any(!made));
  if (!made) return made.error();
  if (fails)
    return make_error(ErrorCode::kUnsupported, "nccl.queues", "another process has too many lines for its GPUs");
  PLAIT_TRY(const auto ids, lines->make_ids(plan, here));
  for (const auto& [index, id] : ids) PLAIT_TRY_VOID(lines->open_line(index, id, here, devices, plan.most_blocks));
  lines->watcher_ = std::thread([all = lines.get()] { all->watch(); });
  return lines;
}

Result<> NcclLines::make_ends(const NcclPlan& plan, RankRange here, const std::vector<c10::Device>& devices) {
  std::map<c10::DeviceIndex, int> queues;
  for (std::size_t index = 0; index < plan.lines.size(); ++index) {
    const NcclLineSpec& spec = plan.lines[index];
    if (spec.way == NcclLineSpec::Way::kHosts) continue;
    for (const RankId member : spec.members) {
      if (!here.contains(member)) continue;
      const c10::Device device = devices[member.index()];
      if (++queues[device.index()] > nccl_->most_queues())
        return make_error(
            ErrorCode::kUnsupported, "nccl.queues",
            "the ranks of one GPU need more than {} lines to ranks of other processes, and queues that share a "
            "stream could wait for each other in a circle; put fewer ranks on a GPU, or more into one process",
            nccl_->most_queues());
      auto line = std::make_unique<NcclLine>(spec, member, nccl_->make_queue(device));
      line->stopped_ = &stopped_;
      lines_.emplace(std::pair(static_cast<std::int32_t>(index), member), std::move(line));
    }
  }
  return {};
}

/// By line, for all that go by devices. The process of a line's first member makes its id.
Result<std::map<std::int32_t, NcclId>> NcclLines::make_ids(const NcclPlan& plan, RankRange here) {
  ByteWriter own;
  for (std::size_t index = 0; index < plan.lines.size(); ++index) {
    const NcclLineSpec& spec = plan.lines[index];
    if (spec.way == NcclLineSpec::Way::kHosts || !here.contains(spec.members.front())) continue;
    PLAIT_TRY(const NcclId id, nccl_->make_id());
    own.put(static_cast<std::int32_t>(index)).put(id);
  }
  PLAIT_TRY(const std::vector<std::string> of_all, gather_on_all(processes_, own.take()));
  std::map<std::int32_t, NcclId> ids;
  for (const std::string& bytes : of_all) {
    ByteReader in(bytes);
    while (!in.done()) {
      const auto index = in.get<std::int32_t>();
      ids[index] = in.get<NcclId>();
    }
  }
  return ids;
}

Result<> NcclLines::open_line(std::int32_t index, const NcclId& id, RankRange here,
                              const std::vector<c10::Device>& devices, int most_blocks) {
  std::vector<NcclMember> members;
  std::vector<NcclLine*> ends;
  int size = 0;
  for (auto at = lines_.lower_bound({index, RankId{0}}); at != lines_.end() && at->first.first == index; ++at) {
    const std::vector<RankId>& all = at->second->spec_.members;
    const RankId member = at->first.second;
    PLAIT_CHECK(here.contains(member), "rank {} is elsewhere", member.value());
    size = static_cast<int>(all.size());
    members.push_back({.place = static_cast<int>(std::find(all.begin(), all.end(), member) - all.begin()),
                       .device = devices[member.index()]});
    ends.push_back(at->second.get());
  }
  if (ends.empty()) return {};
  const bool messages = ends.front()->spec_.kind == NcclLineSpec::Kind::kMessages;
  auto communicators = nccl_->open(id, size, members, messages ? most_blocks : 0);
  if (!communicators)
    return make_error(communicators.error().code, communicators.error().rule, "{}: {}", ends.front()->described(),
                      communicators.error().message);
  for (std::size_t i = 0; i < ends.size(); ++i) ends[i]->communicator_ = std::move((*communicators)[i]);
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  for (NcclLine* end : ends)
    PLAIT_TRY_VOID(await(
        *end, [end] { return end->communicator_->state() == NcclState::kReady; }, deadline));
  return try_out(ends, devices);
}

/// One byte goes by the line, or one element is summed, so that its ends know each other: later no call has to wait for that.
Result<> NcclLines::try_out(const std::vector<NcclLine*>& ends, const std::vector<c10::Device>& devices) {
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  for (NcclLine* end : ends) {
    at::Tensor scratch;
    end->queue_->inside(
        [&] { scratch = at::zeros({1}, at::TensorOptions().dtype(at::kByte).device(devices[end->member_.index()])); });
    NcclCall call{.from = scratch.const_data_ptr(), .into = scratch.mutable_data_ptr(), .count = 1, .type = at::kByte};
    const bool sends = end->member_ == end->spec_.members.front();
    if (end->spec_.kind == NcclLineSpec::Kind::kMessages) {
      call.kind = sends ? NcclCall::Kind::kSend : NcclCall::Kind::kReceive;
      call.peer = sends ? 1 : 0;
    } else {
      call.kind = NcclCall::Kind::kAllReduce;
    }
    try {
      end->communicator_->issue({&call, 1}, *end->queue_);
    } catch (const std::exception& error) {
      return make_error(ErrorCode::kTransport, "nccl.open", "{}: {}", end->described(), error.what());
    }
    end->queue_->keep(scratch);
  }
  for (NcclLine* end : ends) {
    PLAIT_TRY_VOID(await(
        *end, [end] { return end->communicator_->state() == NcclState::kReady; }, deadline));
    const auto mark = end->queue_->mark();
    PLAIT_TRY_VOID(await(
        *end, [&] { return mark->is_passed(); }, deadline));
  }
  return {};
}

Result<> NcclLines::await(const NcclLine& line, const std::function<bool()>& ready, Clock::time_point deadline) const {
  for (Rest rest; !ready(); rest()) {
    if (line.communicator_->state() == NcclState::kFailed)
      return make_error(ErrorCode::kTransport, "nccl.open", "{}: {}", line.described(), line.communicator_->words());
    if (const auto failure = processes_.failure()) return *failure;
    if (Clock::now() > deadline)
      return make_error(
          ErrorCode::kTimeout, "nccl.open",
          "{}: their ends have not met within {:.3f} s; see whether NCCL finds its way between the machines "
          "(NCCL_DEBUG=INFO), or allow more time",
          line.described(), seconds(options_.timeout));
  }
  return {};
}

NcclLine& NcclLines::at(std::int32_t index, RankId member) {
  return *lines_.at({index, member});
}

void NcclLines::stop() {
  stopped_.store(true);
  wake_.notify_all();
}

NcclLines::~NcclLines() {
  if (watcher_.joinable()) {
    if (!stopped_.load()) close_all();
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
    }
    wake_.notify_all();
    watcher_.join();
  }
}

/// In the order of the plan, with all others.
void NcclLines::close_all() {
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  for (const auto& [key, line] : lines_) {
    try {
      line->communicator_->close();
    } catch (const std::exception&) {
      return;  // the rest is given up
    }
    for (Rest rest; line->communicator_->state() == NcclState::kInProgress; rest())
      if (stopped_.load() || Clock::now() > deadline) return;
  }
}

void NcclLines::watch() {
  Clock::time_point moved = Clock::now();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kLook, [this] { return quit_ || stopped_.load(); });
      if (quit_ && !stopped_.load()) return;
    }
    if (!stopped_.load()) {
      std::optional<Error> error;
      try {
        error = look(moved);
      } catch (const std::exception& failure) {
        // Of an earlier call on the device, whatever it was: asking for it here is the first to hear of it.
        error = Error{.code = ErrorCode::kTransport, .rule = "nccl.failed", .message = failure.what()};
      }
      if (error) {
        processes_.report(*error);
        options_.stop();
        stopped_.store(true);
      }
    }
    if (!stopped_.load()) continue;
    for (const auto& [key, line] : lines_) {
      // Who is inside sees that all is stopped and leaves; where NCCL itself does not return, this must not wait either.
      const std::unique_lock lock(line->mutex_, std::chrono::seconds(1));
      if (line->communicator_ != nullptr) line->communicator_->abort();
    }
    return;
  }
}

std::optional<Error> NcclLines::look(Clock::time_point& moved) {
  const Clock::time_point now = Clock::now();
  const NcclLine* slowest = nullptr;
  NcclLine::Pending oldest;
  for (const auto& [key, line] : lines_) {
    if (line->communicator_->state() == NcclState::kFailed)
      return make_error(ErrorCode::kTransport, "nccl.failed", "{}: {}", line->described(),
                        line->communicator_->words());
    const std::unique_lock lock(line->mutex_, std::try_to_lock);
    if (!lock.owns_lock()) {
      moved = now;
      continue;
    }
    for (; !line->pending_.empty() && line->pending_.front().mark->is_passed(); line->pending_.pop_front()) moved = now;
    if (line->pending_.empty()) continue;
    if (slowest != nullptr && oldest.since <= line->pending_.front().since) continue;
    slowest = line.get();
    oldest = line->pending_.front();
  }
  if (slowest == nullptr) moved = now;
  if (slowest == nullptr) return std::nullopt;
  // A message names two ranks, a collective all of its members: whoever waits in a message has the first word.
  constexpr Clock::duration kLater = 4 * kLook;
  const Clock::duration limit =
      options_.timeout + (slowest->spec_.kind == NcclLineSpec::Kind::kMessages ? Clock::duration::zero() : kLater);
  if (now - moved <= limit || now - oldest.since <= limit) return std::nullopt;
  std::vector<std::int32_t> members;
  for (const RankId member : slowest->spec_.members) members.push_back(member.value());
  return make_error(ErrorCode::kTimeout, "nccl.timeout",
                    "rank {}, {}: has been under way for {:.3f} s (limit {:.3f} s), while nothing else moved between "
                    "its GPU and others; "
                    "see which of the GPUs of ranks {} hangs, or allow more time",
                    slowest->member_.value(), oldest.what, seconds(now - oldest.since), seconds(options_.timeout),
                    fmt::join(members, ", "));
}

}  // namespace plait
