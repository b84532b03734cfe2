#pragma once

#include "plait/base/result.h"
#include "plait/run/engine/process_group.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace plait {

class WatchConnection;

/// Signs of life between the processes of a job over TCP, beside the data's path, which may hang with a dead peer. Every
/// process is connected with every other, so that each hears by itself how far everyone's ranks are, who failed and why, who
/// is gone or silent; none depends on another one for that. A thread of its own does all this, so that a process whose ranks
/// hang is told apart from one that hangs as a whole.
///
///     Watch watch(index, size, timeout);
///     PLAIT_TRY(address, watch.listen());            // the others are told, in the order of the processes
///     PLAIT_TRY_VOID(watch.connect(addresses));
///     PLAIT_TRY_VOID(watch.start());
///
/// \threads  any, once started
class Watch {
 public:
  Watch(int index, int size, Clock::duration timeout);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Opens a port; where and with which pass word to reach it. \errors kTransport "watch.listen"
  Result<std::string> listen();
  /// With the processes before this one. \errors kTransport "watch.connect" with all addresses that were tried
  Result<> connect(const std::vector<std::string>& addresses);
  /// Waits for those behind it, as long as the timeout. \errors kTransport "watch.missing" names who is missing
  Result<> start();
  /// Says good-bye: from here on an end of the connection is no failure.
  void leave();

  void show(std::shared_ptr<RankBoard> board);
  void hide();
  /// Asks all for a sign of life and waits for the answers; by process, who gave none soon.
  std::vector<bool> hear_all();
  /// Gives a silent process up.
  void give_up(int process);
  void report(const Error& error);
  [[nodiscard]] std::optional<Error> failure() const;

  /// What the watch's thread does about a failure of another process: `say` at once, and `end` when this process has not
  /// ended by itself half a second after a failure of any.
  struct Handlers {
    std::function<void(const Error&)> say;
    std::function<void(const Error&)> end;
  };
  void set_handlers(Handlers handlers);

 private:
  struct Peer {
    std::unique_ptr<WatchConnection> connection;
    std::string where;
    std::atomic<Clock::time_point> heard = Clock::time_point();
    std::atomic<bool> left = false;
    bool has_lost = false;  ///< it said so, and how far its ranks are
  };
  void loop();
  void read_peer(int process);
  bool on_frame(int process, std::uint8_t kind, std::string_view payload);
  void send_beats();
  void look_for_silence();
  void look_for_overdue();
  void lose(const LostProcess& lost);
  void settle_loss();
  void fail(const Error& error);
  void tell_others(std::uint8_t kind, const std::string& payload, int except);
  void take_states(std::string_view states);
  [[nodiscard]] std::string own_states() const;
  void send_reports();
  void wake();
  [[nodiscard]] LostProcess silent_process(int process) const;
  /// By process, who was not heard since.
  [[nodiscard]] std::vector<bool> silent_since(Clock::time_point asked) const;

  int index_;
  int size_;
  Clock::duration timeout_;
  Clock::duration interval_;
  Clock::duration patience_;  ///< for an answer
  std::string password_;
  std::string where_;
  int listener_ = -1;
  int wake_ = -1;                    ///< an eventfd
  std::vector<Peer> peers_;          ///< by process
  std::optional<LostProcess> lost_;  ///< not reported before the others have said how far they are
  Clock::time_point lost_at_;
  std::optional<Clock::time_point> overdue_since_;  ///< all were asked whether the step really does not end

  mutable std::mutex board_mutex_;
  std::shared_ptr<RankBoard> board_;
  std::int64_t step_ = 0;  ///< boards that were shown

  mutable std::mutex mutex_;  ///< of what follows
  std::optional<Error> failure_;
  Clock::time_point failed_at_;
  std::deque<Error> reports_;  ///< to be sent
  std::vector<int> given_up_;  ///< to be lost
  Handlers handlers_;

  std::atomic<bool> is_to_ask_ = false;
  std::atomic<bool> leaving_ = false;
  std::thread thread_;
};

}  // namespace plait
