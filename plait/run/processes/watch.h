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
/// process is connected with process 0, which tells all what it hears: how far everyone's ranks are, who failed and why,
/// who is gone or silent. A thread of its own does all this, so that a process whose ranks hang is told apart from one
/// that hangs as a whole.
///
///     Watch watch(index, size, timeout);
///     PLAIT_TRY(address, watch.listen());            // on process 0, which tells the others
///     PLAIT_TRY_VOID(watch.connect(address));        // on the others
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
  /// \errors kTransport "watch.connect" with all addresses that were tried
  Result<> connect(const std::string& address);
  /// Process 0 waits for all others, as long as the timeout. \errors kTransport "watch.missing" names who is missing
  Result<> start();
  /// Says good-bye: from here on an end of the connection is no failure.
  void leave();

  void show(std::shared_ptr<RankBoard> board);
  void hide();
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
    Clock::time_point heard;
    std::string states;  ///< of its ranks, as they came
    bool left = false;
  };
  void loop();
  void read_peer(int process);
  bool on_frame(int process, std::uint8_t kind, std::string_view payload);
  void send_beats();
  void forget_waits(int process);
  void look_for_silence();
  void look_for_overdue();
  void lose(const LostProcess& lost);
  void fail(const Error& error);
  void tell_others(std::uint8_t kind, const std::string& payload, int except);
  void take_states(std::string_view states);
  [[nodiscard]] std::string own_states() const;
  void send_reports();
  void wake();

  int index_;
  int size_;
  Clock::duration timeout_;
  Clock::duration interval_;
  std::string password_;
  std::string where_;
  int listener_ = -1;
  int wake_ = -1;            ///< an eventfd
  std::vector<Peer> peers_;  ///< by process; on others than 0 only that of 0 has a connection

  mutable std::mutex board_mutex_;
  std::shared_ptr<RankBoard> board_;

  mutable std::mutex mutex_;  ///< of what follows
  std::optional<Error> failure_;
  Clock::time_point failed_at_;
  std::deque<Error> reports_;  ///< to be sent
  Handlers handlers_;

  std::atomic<bool> leaving_ = false;
  std::thread thread_;
};

}  // namespace plait
