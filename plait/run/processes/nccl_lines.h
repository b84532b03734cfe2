#pragma once

#include "plait/run/engine/process_group.h"
#include "plait/run/processes/nccl_plan.h"
#include "plait/run/processes/nccl_table.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace plait {

/// One member's end of a line: a communicator, and the queue that its calls go to. Whoever uses it first tells the queue what
/// it has to wait for.
class NcclLine {
 public:
  NcclLine(NcclLineSpec spec, RankId member, std::unique_ptr<DeviceQueue> queue)
      : spec_(std::move(spec)), member_(member), queue_(std::move(queue)) {}

  [[nodiscard]] DeviceQueue& queue() { return *queue_; }
  [[nodiscard]] const NcclLineSpec& spec() const { return spec_; }

  /// Gives the queue the calls as one. The mark stands behind them.
  /// \param what  they do, for messages
  /// \errors  throws std::runtime_error where NCCL refuses or fails, or all has been stopped
  std::shared_ptr<QueueMark> issue(std::string what, std::span<const NcclCall> calls);

 private:
  friend class NcclLines;
  struct Pending {
    std::shared_ptr<QueueMark> mark;
    std::string what;
    Clock::time_point since;
  };
  [[nodiscard]] std::string described() const;

  NcclLineSpec spec_;
  RankId member_;
  std::unique_ptr<DeviceQueue> queue_;
  std::unique_ptr<NcclCommunicator> communicator_;
  const std::atomic<bool>* stopped_ = nullptr;
  std::timed_mutex mutex_;  ///< for communicator_, but for its state, and pending_
  std::deque<Pending> pending_;
};

/// All ends of a program's lines that are in this process, and the thread that looks after them: a communicator that fails, or
/// calls that no device comes to, end the step on all processes, and nothing waits for what will never come.
class NcclLines {
 public:
  struct Options {
    Clock::duration timeout = std::chrono::seconds(60);
    std::function<void()> stop;  ///< ends all waits of this process; called once something fails here
  };

  /// A call of all processes.
  /// \param devices  per rank; those of ranks elsewhere are not looked at
  /// \errors kTransport, kTimeout "nccl.open"; kUnsupported "nccl.queues"; those of the process group
  static Result<std::unique_ptr<NcclLines>> open(ProcessGroup& processes, std::shared_ptr<Nccl> nccl,
                                                 const NcclPlan& plan, RankRange here,
                                                 const std::vector<c10::Device>& devices, Options options);
  ~NcclLines();
  NcclLines(const NcclLines&) = delete;
  NcclLines& operator=(const NcclLines&) = delete;

  /// The end of `member`, which is in this process, of line `index` of the plan, which goes by devices.
  [[nodiscard]] NcclLine& at(std::int32_t index, RankId member);

  /// Gives everything up. From any thread; returns at once.
  void stop();
  [[nodiscard]] bool is_stopped() const { return stopped_.load(); }

 private:
  NcclLines(ProcessGroup& processes, std::shared_ptr<Nccl> nccl, Options options)
      : processes_(processes), nccl_(std::move(nccl)), options_(std::move(options)) {}
  Result<std::map<std::int32_t, NcclId>> make_ids(const NcclPlan& plan, RankRange here);
  Result<> make_ends(const NcclPlan& plan, RankRange here, const std::vector<c10::Device>& devices);
  Result<> open_line(std::int32_t index, const NcclId& id, RankRange here, const std::vector<c10::Device>& devices,
                     int most_blocks);
  Result<> try_out(const std::vector<NcclLine*>& ends, const std::vector<c10::Device>& devices);
  Result<> await(const NcclLine& line, const std::function<bool()>& ready, Clock::time_point deadline) const;
  void watch();
  /// The first thing that is wrong, if anything is.
  std::optional<Error> look(Clock::time_point& moved);
  void close_all();

  ProcessGroup& processes_;
  std::shared_ptr<Nccl> nccl_;
  Options options_;
  std::map<std::pair<std::int32_t, RankId>, std::unique_ptr<NcclLine>> lines_;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool quit_ = false;  ///< guarded by mutex_
  std::thread watcher_;
};

}  // namespace plait
