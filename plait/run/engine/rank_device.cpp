#include "plait/run/engine/rank_device.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>

namespace plait {

Result<> check_device(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU) return {};
  if (type == c10::DeviceType::CUDA) PLAIT_TRY_VOID(load_cuda());
  const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
  try {
    if (!c10::impl::hasDeviceGuardImpl(type) || c10::impl::VirtualGuardImpl(type).deviceCount() == 0)
      return make_error(ErrorCode::kUnsupported, "device.missing",
                        "no {} device is to be seen: a driver is missing, or CUDA_VISIBLE_DEVICES hides them all; use "
                        "--device cpu",
                        name);
    at::globalContext().lazyInitDevice(type);
  } catch (const c10::Error& error) {
    return make_error(ErrorCode::kUnsupported, "device.missing", "{} does not start: {}", name,
                      error.what_without_backtrace());
  }
  return {};
}

RankDevice::RankDevice(const Placement& placement, int place) : reads_(placement.reads) {
  if (placement.device == c10::DeviceType::CPU) return;
  reads_ = HostReads::kAtEndOfStep;
  const c10::impl::VirtualGuardImpl devices(placement.device);
  const auto index = static_cast<c10::DeviceIndex>(place % devices.deviceCount());
  stream_ = devices.getNewStream(c10::Device(placement.device, index));
}

Bytes RankDevice::peak_bytes() const {
  using c10::CachingAllocator::StatType;
  const auto stats = c10::getDeviceAllocator(stream_->device_type())->getDeviceStats(stream_->device_index());
  return Bytes{stats.allocated_bytes[static_cast<std::size_t>(StatType::AGGREGATE)].peak};
}

}  // namespace plait
