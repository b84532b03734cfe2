#pragma once

#include "plait/base/ids.h"
#include "plait/base/result.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <cstdint>
#include <optional>

namespace plait {

/// When the host reads losses and norms.
enum class HostReads : std::uint8_t {
  kAtOnce,       ///< where they arise
  kAtEndOfStep,  ///< so that the host never waits for a device before it has given it the whole step
};

/// Where ranks keep their tensors and compute.
struct Placement {
  c10::DeviceType device =
      c10::DeviceType::CPU;              ///< of several devices, the ranks of a machine take one after another in turns
  HostReads reads = HostReads::kAtOnce;  ///< on a GPU always at the end of the step
};

/// Is there such a device, and can this build use it? Loads what it needs.
/// \errors kUnsupported "device.missing"
Result<> check_device(c10::DeviceType type);

/// Loads torch's kernels for CUDA. \errors kUnsupported "device.missing"
Result<> load_cuda();

/// One rank's device. On a GPU the rank has a stream of its own there, also where ranks share the GPU.
class RankDevice {
 public:
  RankDevice() = default;  ///< the host
  /// \param place  of the rank among those of its machine: it takes device number `place` mod their count
  RankDevice(const Placement& placement, int place);

  [[nodiscard]] bool is_host() const { return !stream_; }
  [[nodiscard]] c10::Device device() const { return is_host() ? c10::Device(c10::DeviceType::CPU) : stream_->device(); }
  [[nodiscard]] HostReads reads() const { return reads_; }
  /// Not of the host: highest bytes in tensors on the device, of all ranks that share it.
  [[nodiscard]] Bytes peak_bytes() const;

 private:
  friend class DeviceScope;
  HostReads reads_ = HostReads::kAtOnce;
  std::optional<c10::Stream> stream_;
};

/// What this thread computes until the end of the scope goes to the rank's stream. Nothing for the host.
class DeviceScope {
 public:
  explicit DeviceScope(const RankDevice& device) {
    if (!device.is_host()) guard_.reset_stream(*device.stream_);
  }

 private:
  c10::OptionalStreamGuard guard_;
};

}  // namespace plait
