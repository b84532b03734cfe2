#include "plait/run/processes/nccl_table.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace plait {
namespace {

class EventMark final : public QueueMark {
 public:
  explicit EventMark(const c10::Stream& stream) : event_(stream.device_type()), device_(stream.device()) {
    event_.record(stream);
  }
  [[nodiscard]] bool is_passed() const override { return event_.query(); }
  void caller_follows() override { event_.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_)); }

 private:
  c10::Event event_;
  c10::Device device_;
};

class StreamQueue final : public DeviceQueue {
 public:
  explicit StreamQueue(c10::Device device)
      : devices_(device.type()), device_(device), stream_(devices_.getNewStream(device, kPriority)) {}

  void follow_caller() override {
    c10::Event given(device_.type());
    given.record(devices_.getStream(device_));
    given.block(stream_);
  }
  void inside(const std::function<void()>& work) override {
    const c10::StreamGuard guard(stream_);
    work();
  }
  void keep(const at::Tensor& tensor) override {
    if (tensor.defined()) tensor.record_stream(stream_);
  }
  void lend(const at::Tensor& tensor) override {
    if (tensor.defined()) tensor.record_stream(devices_.getStream(device_));
  }
  std::shared_ptr<QueueMark> mark() override { return std::make_shared<EventMark>(stream_); }
  [[nodiscard]] void* native() const override { return devices_.getStreamNativeHandle(stream_); }

 private:
  static constexpr int kPriority = -1;  // before the ranks' own, whose pool is another

  c10::impl::VirtualGuardImpl devices_;
  c10::Device device_;
  c10::Stream stream_;
};

}  // namespace

std::unique_ptr<DeviceQueue> make_device_queue(c10::Device device) {
  return std::make_unique<StreamQueue>(device);
}

}  // namespace plait
