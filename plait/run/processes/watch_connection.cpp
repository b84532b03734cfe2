#include "plait/run/processes/watch_connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace plait {
namespace {

constexpr std::size_t kHeader = sizeof(std::uint32_t) + 1;  // length of the payload, kind

bool wait_for(int socket, short what, int milliseconds) {
  pollfd waiting{.fd = socket, .events = what, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, milliseconds);
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

sockaddr* as_address(sockaddr_in& address) {
  return reinterpret_cast<sockaddr*>(&address);
}

}  // namespace

WatchConnection::WatchConnection(int socket) : socket_(socket) {
  ::fcntl(socket_, F_SETFL, ::fcntl(socket_, F_GETFL, 0) | O_NONBLOCK);
  const int on = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

WatchConnection::~WatchConnection() {
  ::close(socket_);
}

void WatchConnection::send(std::uint8_t kind, std::string_view payload) {
  const auto length = static_cast<std::uint32_t>(payload.size());
  out_.append(reinterpret_cast<const char*>(&length), sizeof length);
  out_.push_back(static_cast<char>(kind));
  out_.append(payload);
  flush();
}

void WatchConnection::send_beat(std::uint8_t kind, std::string_view payload) {
  constexpr std::size_t kMuch = 1U << 16U;
  if (out_.size() < kMuch) send(kind, payload);
}

void WatchConnection::flush() {
  while (!out_.empty()) {
    const ssize_t sent = ::send(socket_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      if (sent < 0 && errno == EINTR) continue;
      return;  // full, or ended: reading will tell
    }
    out_.erase(0, static_cast<std::size_t>(sent));
  }
}

bool WatchConnection::read(const std::function<bool(std::uint8_t, std::string_view)>& on_frame) {
  std::array<char, 1U << 14U> chunk;
  bool ended = false;
  for (;;) {
    const ssize_t count = ::recv(socket_, chunk.data(), chunk.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count > 0) {
      in_.append(chunk.data(), static_cast<std::size_t>(count));
      continue;
    }
    ended = count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    break;
  }
  std::size_t at = 0;
  while (in_.size() - at >= kHeader) {
    std::uint32_t length = 0;
    std::memcpy(&length, in_.data() + at, sizeof length);
    if (in_.size() - at - kHeader < length) break;
    const auto kind = static_cast<std::uint8_t>(in_[at + sizeof length]);
    const std::string payload = in_.substr(at + kHeader, length);
    at += kHeader + length;
    if (!on_frame(kind, payload)) break;
  }
  in_.erase(0, at);
  return !ended;
}

bool wait_readable(int socket, int milliseconds) {
  return wait_for(socket, POLLIN, milliseconds);
}

bool wait_writable(int socket, int milliseconds) {
  return wait_for(socket, POLLOUT, milliseconds);
}

std::string own_addresses() {
  std::string list;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) == 0) {
    for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
      const bool is_up = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_LOOPBACK) == 0;
      if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET || !is_up) continue;
      std::array<char, INET_ADDRSTRLEN> text{};
      const auto* address = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
      if (::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()) != nullptr)
        list += std::string(text.data()) + ",";
    }
    ::freeifaddrs(first);
  }
  return list + "127.0.0.1";
}

Result<Listener> open_listener() {
  const auto failed = [](const char* what) {
    return make_error(ErrorCode::kTransport, "watch.listen", "no port for signs of life: {}: {}", what,
                      std::generic_category().message(errno));
  };
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return failed("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  constexpr int kBacklog = 1024;
  if (::bind(socket, as_address(address), size) != 0 || ::listen(socket, kBacklog) != 0 ||
      ::getsockname(socket, as_address(address), &size) != 0) {
    const Error error = failed("bind");
    ::close(socket);
    return error;
  }
  return Listener{.socket = socket, .port = ntohs(address.sin_port)};
}

int connect_to(const std::string& address, int port, int milliseconds) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) return -1;
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return -1;
  if (::connect(socket, as_address(to), sizeof to) == 0) return socket;
  int error = errno;
  socklen_t size = sizeof error;
  if (error == EINPROGRESS && wait_writable(socket, milliseconds) &&
      ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)
    return socket;
  ::close(socket);
  return -1;
}

}  // namespace plait
