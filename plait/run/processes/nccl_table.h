#pragma once

#include "plait/base/result.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

/// All that is used of NCCL and of the device beneath it. What is done with it (nccl_plan, nccl_lines, nccl_transport) knows
/// nothing else, so that it can be tried without either.
namespace plait {

/// A place in a DeviceQueue.
class QueueMark {
 public:
  virtual ~QueueMark() = default;
  /// Is the device beyond it? From any thread.
  [[nodiscard]] virtual bool is_passed() const = 0;
  /// What this thread's stream is given from now on waits for it.
  virtual void caller_follows() = 0;
};

/// Work that a device does one after another, beside the streams of the ranks.
///
/// \threads  one at a time
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  /// What it is given from now on waits for all that this thread's stream was given.
  virtual void follow_caller() = 0;
  /// Does `work` with the queue as this thread's stream: what that allocates and computes is the queue's.
  virtual void inside(const std::function<void()>& work) = 0;
  /// The queue uses the tensor: its memory is not used again before what the queue was given is done, whoever drops it.
  virtual void keep(const at::Tensor& tensor) = 0;
  /// The same for a tensor that was allocated inside, and this thread's stream.
  virtual void lend(const at::Tensor& tensor) = 0;
  /// Behind all that it was given.
  virtual std::shared_ptr<QueueMark> mark() = 0;
  /// As NCCL wants it: cudaStream_t.
  [[nodiscard]] virtual void* native() const = 0;
};

/// One call of NCCL.
struct NcclCall {
  enum class Kind : std::uint8_t { kSend, kReceive, kAllReduce, kReduce, kReduceScatter, kAllGather, kBroadcast };
  Kind kind = Kind::kSend;
  const void* from = nullptr;
  void* into = nullptr;
  std::size_t count = 0;  ///< elements; of reduce_scatter and all_gather in one member's share
  at::ScalarType type = at::kByte;
  int peer = 0;  ///< place of whom to send to, or to receive from; of the root of a reduce or a broadcast
};

enum class NcclState : std::uint8_t { kReady, kInProgress, kFailed };

/// One member's hold on a communicator.
///
/// \threads  one at a time; `state` from any
class NcclCommunicator {
 public:
  virtual ~NcclCommunicator() = default;  ///< gives up what was not closed
  /// Is it through with what it was told last? Never waits.
  [[nodiscard]] virtual NcclState state() = 0;
  /// NCCL's own words for a failure.
  [[nodiscard]] virtual std::string words() = 0;
  /// Gives the queue all of the calls as one; it is told when `state` is ready again. Never waits.
  virtual void issue(std::span<const NcclCall> calls, DeviceQueue& queue) = 0;
  /// Begins the orderly end, together with the other members; `state` says when it is over.
  virtual void close() = 0;
  /// Ends whatever hangs, here and on the device. Nothing else may be called behind it.
  virtual void abort() = 0;
};

using NcclId = std::array<char, 128>;  ///< ncclUniqueId

/// A member that this process runs.
struct NcclMember {
  int place = 0;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
};

class Nccl {
 public:
  virtual ~Nccl() = default;
  /// For a communicator whose first member this process runs.
  virtual Result<NcclId> make_id() = 0;
  /// Begins to open a communicator of `size` members for those that are here. Never waits; the communicators' states say when
  /// it is there.
  /// \param most_blocks  of the device, that a call of it may occupy; 0: as NCCL likes
  virtual Result<std::vector<std::unique_ptr<NcclCommunicator>>> open(const NcclId& id, int size,
                                                                      std::span<const NcclMember> here,
                                                                      int most_blocks) = 0;
  virtual std::unique_ptr<DeviceQueue> make_queue(c10::Device device) = 0;
  /// Queues of a device that surely do not wait for each other.
  [[nodiscard]] virtual int most_queues() const = 0;
  /// Tells the devices of a machine apart. Asked once for each rank that is here.
  virtual Result<std::string> name_of(c10::Device device) = 0;
};

/// Can this build use NCCL? \errors kUnsupported "nccl.missing"
Result<> check_nccl_is_built_in();
/// \errors kUnsupported "nccl.missing"
Result<std::shared_ptr<Nccl>> load_nccl();

/// A stream of its own, of any device that libc10 knows.
std::unique_ptr<DeviceQueue> make_device_queue(c10::Device device);
inline constexpr int kMostDeviceQueues = 32;  ///< streams of one priority in libc10's pool, which go round

}  // namespace plait
