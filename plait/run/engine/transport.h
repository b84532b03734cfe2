#pragma once

#include "plait/base/ids.h"
#include "plait/base/result.h"
#include "plait/ir/instr.h"
#include "plait/ir/value.h"
#include "plait/run/engine/doorbell.h"
#include "plait/run/engine/stream_order.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace plait {

/// What travels. The name goes along and is compared by the receiver, as dtypes and shapes are.
struct Message {
  Value value;
  std::vector<at::Tensor> tensors;
  std::vector<std::int32_t> counts;  ///< stashes only: tensors of each part
};

/// One point-to-point transfer of a program. Transfers are told apart by (source, destination, value) and, where the same
/// value crosses the same way again, by the how-manieth time: never by direction or by order.
struct Transfer {
  RankId source;
  RankId destination;
  Value value;
  int occurrence = 0;
  friend auto operator<=>(const Transfer&, const Transfer&) = default;
};
using TransferId = std::int32_t;  ///< index into Routes::transfers

/// One collective of a program.
struct CollectiveRoute {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<RankId> members;  ///< ascending
  RankId root;
  Value value;
  std::int32_t order = 0;  ///< those of one number have the same members, who enter them in one order
  friend bool operator==(const CollectiveRoute&, const CollectiveRoute&) = default;
};
using CollectiveId = std::int32_t;  ///< index into Routes::collectives

/// All channels of a program, in one order that is the same on every rank. A transport opens them once, at the start.
struct Routes {
  int num_ranks = 1;
  std::vector<Transfer> transfers;
  std::vector<CollectiveRoute> collectives;
  c10::DeviceType device = c10::DeviceType::CPU;  ///< where the tensors lie
  std::vector<c10::Device> devices = {};          ///< per rank, where this process runs it; empty: all on the host
};

enum class WaitStatus : std::uint8_t {
  kReady,
  kTimedOut,
  kStopped,  ///< another rank failed
};

/// Moves messages between the ranks of one step after another. Every route is used at most once in a step.
///
///     transport.begin_step();                      // while all ranks rest
///     transport.send(id, std::move(message));      // on the source's thread
///     transport.receive(id, message, deadline);    // on the destination's
///
/// Collectives work in place on the members' tensors. A member gives them away when it enters, and has its results in them
/// when its `finish` returns; nobody touches them later. `finish` waits until all members have entered, never until others
/// finish. An undefined tensor takes no part. What each kind does: segments.h.
///
/// \threads  calls of different ranks run concurrently, those of one rank do not
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual const Routes& routes() const = 0;
  virtual void begin_step() = 0;

  /// Takes the message; never blocks.
  virtual void send(TransferId id, Message&& message) = 0;
  /// The message's buffers will be wanted.
  virtual void post_receive(TransferId id) = 0;
  virtual WaitStatus receive(TransferId id, Message& message, Clock::time_point deadline) = 0;
  /// Until the buffers of the send are free again.
  virtual WaitStatus wait_sent(TransferId id, Clock::time_point deadline) = 0;

  virtual void enter(CollectiveId id, RankId member, std::span<const at::Tensor> tensors) = 0;
  virtual WaitStatus finish(CollectiveId id, RankId member, Clock::time_point deadline) = 0;
  /// A member that `finish` of `member` is waiting for; for messages only.
  [[nodiscard]] virtual RankId awaited(CollectiveId id, RankId member) const = 0;

  /// Ends all waits, now and later, with kStopped. From any thread.
  virtual void stop() = 0;

  /// What users should know of the ways that it found; empty: nothing.
  [[nodiscard]] virtual std::string note() const { return {}; }
};

class ProcessGroup;
/// \param processes  that run the ranks together; null: this process runs all. A call of all of them
using TransportWrapper =
    std::function<Result<std::unique_ptr<Transport>>(std::unique_ptr<Transport>, ProcessGroup* processes)>;

/// Bytes of a message's elements.
Bytes message_bytes(const Message& message);

/// Threads of one process; buffers are handed over, never copied, unless they lie on different devices.
std::unique_ptr<Transport> make_in_process_transport(Routes routes);
/// The same with another order between streams than the device's own; null: none.
std::unique_ptr<Transport> make_in_process_transport(Routes routes, std::unique_ptr<StreamOrder> order);
/// Marks that it needs.
std::size_t num_stream_marks(const Routes& routes);

}  // namespace plait
