#include "plait/run/engine/rank_threads.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <pthread.h>

#include <utility>

namespace plait {
namespace {

template <class Ready>
void wait_long(Doorbell& bell, const Ready& ready) {
  while (!bell.wait(ready, Clock::now() + std::chrono::hours(1))) {
  }
}

}  // namespace

RankThreads::RankThreads(RankId first, int num_ranks) : lanes_(static_cast<std::size_t>(num_ranks)) {
  for (int at = 0; at < num_ranks; ++at) {
    Lane& lane = lanes_[static_cast<std::size_t>(at)];
    lane.thread = std::thread([this, &lane, rank = RankId{first.value() + at}] { loop(lane, rank); });
  }
}

RankThreads::~RankThreads() {
  quit_.store(true);
  for (Lane& lane : lanes_) lane.bell.ring();
  for (Lane& lane : lanes_) lane.thread.join();
}

void RankThreads::run(const std::function<void(RankId)>& job) {
  job_ = &job;
  running_.store(static_cast<int>(lanes_.size()));
  round_.fetch_add(1);
  for (Lane& lane : lanes_) lane.bell.ring();
  wait_long(done_bell_, [this] { return running_.load() == 0; });
  for (Lane& lane : lanes_)
    if (lane.exception) std::rethrow_exception(std::exchange(lane.exception, nullptr));
}

void RankThreads::loop(Lane& lane, RankId rank) {
  pthread_setname_np(pthread_self(), fmt::format("plait-rank-{}", rank.value()).c_str());
  at::set_num_threads(1);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (std::uint64_t seen = 0;;) {
    wait_long(lane.bell, [&] { return round_.load() != seen || quit_.load(); });
    if (quit_.load()) return;
    ++seen;
    try {
      (*job_)(rank);
    } catch (...) {
      lane.exception = std::current_exception();
    }
    if (running_.fetch_sub(1) == 1) done_bell_.ring();
  }
}

}  // namespace plait
