#pragma once

#include "plait/base/result.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace plait {

/// A TCP connection that carries frames: kind and payload. Never blocks; what the peer does not take waits here.
class WatchConnection {
 public:
  /// Takes the socket over.
  explicit WatchConnection(int socket);
  ~WatchConnection();
  WatchConnection(const WatchConnection&) = delete;
  WatchConnection& operator=(const WatchConnection&) = delete;

  [[nodiscard]] int socket() const { return socket_; }
  [[nodiscard]] bool has_unsent() const { return !out_.empty(); }

  void send(std::uint8_t kind, std::string_view payload);
  /// Like send, but dropped where much waits already: the next one says the same, and newer.
  void send_beat(std::uint8_t kind, std::string_view payload);
  void flush();
  /// Reads what is there and hands whole frames on until `on_frame` says no; false once the connection has ended.
  bool read(const std::function<bool(std::uint8_t, std::string_view)>& on_frame);

 private:
  int socket_;
  std::string in_;
  std::string out_;
};

/// Waits until a socket can be read (or connects), as long as `milliseconds`.
bool wait_readable(int socket, int milliseconds);
bool wait_writable(int socket, int milliseconds);

/// IPv4 addresses of this machine, the loopback one last.
std::string own_addresses();
/// A port on all interfaces. \errors kTransport "watch.listen"
struct Listener {
  int socket = -1;
  int port = 0;
};
Result<Listener> open_listener();
/// A connected socket, or -1.
int connect_to(const std::string& address, int port, int milliseconds);

}  // namespace plait
