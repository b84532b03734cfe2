#pragma once

#include "plait/base/ids.h"
#include "plait/run/engine/doorbell.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace plait {

/// One persistent thread for each of some neighbouring ranks, each with one intra-op thread and without autograd's dispatch.
///
///     RankThreads threads(RankId{0}, 4);
///     threads.run([&](RankId rank) { ... });   // on all at once; returns when all are done
class RankThreads {
 public:
  RankThreads(RankId first, int num_ranks);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  /// Rethrows the first exception by rank, after all are done.
  void run(const std::function<void(RankId)>& job);

 private:
  struct Lane {
    Doorbell bell;
    std::exception_ptr exception;
    std::thread thread;
  };
  void loop(Lane& lane, RankId rank);

  std::deque<Lane> lanes_;
  Doorbell done_bell_;
  const std::function<void(RankId)>* job_ = nullptr;  ///< published by round_
  std::atomic<std::uint64_t> round_ = 0;
  std::atomic<int> running_ = 0;
  std::atomic<bool> quit_ = false;
};

}  // namespace plait
