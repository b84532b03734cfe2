#pragma once

#include "tests/run/engine/forwarding_transport.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>

namespace plait {

/// Lets one rank go from a collective only when the step is stopped, or much later.
class HoldsRank final : public testing::ForwardingTransport {
 public:
  HoldsRank(std::unique_ptr<Transport> inner, RankId held)
      : testing::ForwardingTransport(std::move(inner)), held_(held) {}
  WaitStatus finish(CollectiveId id, RankId member, Clock::time_point deadline) override {
    const WaitStatus status = testing::ForwardingTransport::finish(id, member, deadline);
    const Clock::time_point end = Clock::now() + std::chrono::seconds(20);
    while (member == held_ && !stopped_.load() && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return status;
  }
  void stop() override {
    stopped_.store(true);
    testing::ForwardingTransport::stop();
  }

 private:
  RankId held_;
  std::atomic<bool> stopped_ = false;
};

/// Lets a rank send a signal to its process in the second step, instead of a message.
class Harms final : public testing::ForwardingTransport {
 public:
  Harms(std::unique_ptr<Transport> inner, TransferId id, int signal)
      : testing::ForwardingTransport(std::move(inner)), id_(id), signal_(signal) {}
  void begin_step() override {
    ++step_;
    testing::ForwardingTransport::begin_step();
  }
  void send(TransferId id, Message&& message) override {
    if (id == id_ && step_ == 2) {
      // Others wait for what comes from here, and their states are known, by beats too.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      std::fputs("now\n", stderr);
      ::raise(signal_);
    }
    testing::ForwardingTransport::send(id, std::move(message));
  }

 private:
  TransferId id_;
  int signal_;
  int step_ = 0;
};

}  // namespace plait
