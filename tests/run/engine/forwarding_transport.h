#pragma once

#include "plait/run/engine/transport.h"

#include <memory>
#include <span>
#include <utility>

namespace plait::testing {

/// Hands everything on; a test's fault overrides what it disturbs.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::shared_ptr<Transport> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] const Routes& routes() const override { return inner_->routes(); }
  void begin_step() override { inner_->begin_step(); }
  void send(TransferId id, Message&& message) override { inner_->send(id, std::move(message)); }
  void post_receive(TransferId id) override { inner_->post_receive(id); }
  WaitStatus receive(TransferId id, Message& message, Clock::time_point deadline) override {
    return inner_->receive(id, message, deadline);
  }
  WaitStatus wait_sent(TransferId id, Clock::time_point deadline) override { return inner_->wait_sent(id, deadline); }
  void enter(CollectiveId id, RankId member, std::span<const at::Tensor> tensors) override {
    inner_->enter(id, member, tensors);
  }
  WaitStatus finish(CollectiveId id, RankId member, Clock::time_point deadline) override {
    return inner_->finish(id, member, deadline);
  }
  [[nodiscard]] RankId awaited(CollectiveId id, RankId member) const override { return inner_->awaited(id, member); }
  void stop() override { inner_->stop(); }

 protected:
  [[nodiscard]] Transport& inner() { return *inner_; }

 private:
  std::shared_ptr<Transport> inner_;
};

}  // namespace plait::testing
