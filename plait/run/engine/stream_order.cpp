#include "plait/run/engine/stream_order.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <vector>

namespace plait {
namespace {

class EventOrder final : public StreamOrder {
 public:
  EventOrder(c10::DeviceType device, std::size_t num_marks) : devices_(device), events_(num_marks) {}

  void set(std::size_t mark) override {
    // Anew each time: an event belongs to one device, and shares of a collective are done by whoever comes first.
    events_[mark].emplace(devices_.type());
    events_[mark]->record(stream());
  }
  void follow(std::size_t mark) override { events_[mark]->block(stream()); }

  void use(const at::Tensor& tensor) override {
    // A copy from another device runs on that device's stream of this thread.
    if (tensor.defined() && !tensor.is_cpu()) tensor.record_stream(devices_.getStream(tensor.device()));
  }

  at::Tensor bring(const at::Tensor& tensor) override {
    use(tensor);
    const c10::Device here = devices_.getDevice();
    if (!tensor.defined() || tensor.is_cpu() || tensor.device() == here) return tensor;
    return tensor.to(tensor.options().device(here), /*non_blocking=*/true);
  }

 private:
  [[nodiscard]] c10::Stream stream() const { return devices_.getStream(devices_.getDevice()); }

  c10::impl::VirtualGuardImpl devices_;
  std::vector<std::optional<c10::Event>> events_;  ///< per mark
};

}  // namespace

std::unique_ptr<StreamOrder> make_stream_order(c10::DeviceType device, std::size_t num_marks) {
  return std::make_unique<EventOrder>(device, num_marks);
}

}  // namespace plait
