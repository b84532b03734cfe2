#pragma once

#include "plait/run/processes/mpi_world.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace plait {

/// Requests under way, each with what to do behind it. All calls while the world is held.
class MpiRequests {
 public:
  using Behind = std::function<void()>;

  /// Buffers live until `behind` runs. Large ones go in pieces, each of which calls `behind`; returns their number.
  int send(const void* data, std::size_t size, int process, int tag, MPI_Comm channel, const Behind& behind) {
    return in_pieces(
        size,
        [&](std::size_t at, int count, MPI_Request* request) {
          check_mpi(MPI_Isend(static_cast<const char*>(data) + at, count, MPI_BYTE, process, tag, channel, request),
                    "MPI_Isend");
        },
        behind);
  }
  int receive(void* data, std::size_t size, int process, int tag, MPI_Comm channel, const Behind& behind) {
    return in_pieces(
        size,
        [&](std::size_t at, int count, MPI_Request* request) {
          check_mpi(MPI_Irecv(static_cast<char*>(data) + at, count, MPI_BYTE, process, tag, channel, request),
                    "MPI_Irecv");
        },
        behind);
  }
  void add(MPI_Request request, Behind behind) {
    requests_.push_back(request);
    behind_.push_back(std::move(behind));
  }

  [[nodiscard]] bool empty() const { return requests_.empty(); }

  /// Runs what stands behind all requests that are through; whether any was.
  bool progress() {
    if (requests_.empty()) return false;
    done_.resize(requests_.size());
    int count = 0;
    check_mpi(
        MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, done_.data(), MPI_STATUSES_IGNORE),
        "MPI_Testsome");
    if (count == MPI_UNDEFINED || count == 0) return false;
    // What runs may add requests.
    std::vector<Behind> due;
    for (int i = 0; i < count; ++i)
      due.push_back(std::move(behind_[static_cast<std::size_t>(done_[static_cast<std::size_t>(i)])]));
    std::size_t kept = 0;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      requests_[kept] = requests_[i];
      if (kept != i) behind_[kept] = std::move(behind_[i]);
      ++kept;
    }
    requests_.resize(kept);
    behind_.resize(kept);
    for (const Behind& next : due) next();
    return true;
  }

 private:
  template <class Post>
  int in_pieces(std::size_t size, const Post& post, const Behind& behind) {
    constexpr std::size_t kMost = std::size_t{1} << 30U;  // MPI counts with int
    int pieces = 0;
    for (std::size_t at = 0; at < size; at += kMost, ++pieces) {
      MPI_Request request = MPI_REQUEST_NULL;
      post(at, static_cast<int>(std::min(kMost, size - at)), &request);
      add(request, behind);
    }
    return pieces;
  }

  std::vector<MPI_Request> requests_;
  std::vector<Behind> behind_;
  std::vector<int> done_;
};

}  // namespace plait
