#include "plait/run/processes/nccl_transport.h"

#include "plait/base/check.h"
#include "plait/run/engine/binding.h"
#include "plait/run/engine/byte_stream.h"
#include "plait/run/engine/describe.h"
#include "plait/run/engine/memory.h"
#include "plait/run/engine/rank_worker.h"
#include "plait/run/processes/nccl_calls.h"
#include "plait/run/processes/nccl_lines.h"
#include "plait/run/processes/wire.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace plait {
namespace {

/// On its way to a rank that is here.
struct Incoming {
  std::uint64_t given_in = 0;  ///< the last step in which the device was told of it
  Message message;
  std::shared_ptr<QueueMark> mark;  ///< null: nothing to wait for
};

/// What a rank that is here received, in the order in which it asked for it, and sent.
struct Lane {
  std::vector<TransferId> posted;  ///< in this step
  std::size_t num_given = 0;       ///< of these
  std::uint64_t num_sent = 0;      ///< in this step
};

/// A member's part in a collective.
struct Entry {
  std::vector<at::Tensor> tensors;   ///< by way of the hosts: where the results belong, until they are there
  std::vector<at::Tensor> on_host;   ///< copies of them
  std::vector<MemberTensor> brings;  ///< in the first step
  std::shared_ptr<QueueMark> mark;   ///< null: by way of the hosts
};

at::Tensor bytes_as_tensor(std::string_view bytes) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string_view tensor_as_bytes(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

at::Tensor copy_on_host(const WirePiece& piece, c10::Device device) {
  const at::Tensor there = at::for_blob(const_cast<void*>(piece.data), {static_cast<std::int64_t>(piece.size)})
                               .options(at::TensorOptions().dtype(at::kByte).device(device))
                               .target_device(device)
                               .make_tensor();
  return there.to(at::TensorOptions().device(at::kCPU), /*non_blocking=*/false, /*copy=*/true);
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(ProcessGroup& processes, std::unique_ptr<Transport> inner, NcclPlan plan, RankRange here,
                std::vector<c10::Device> devices)
      : processes_(processes),
        inner_(std::move(inner)),
        plan_(std::move(plan)),
        here_(here),
        devices_(std::move(devices)),
        incoming_(routes().transfers.size()),
        lanes_(plan_.lines.size()),
        brought_(routes().collectives.size()) {
    for (const CollectiveRoute& route : routes().collectives) entries_.emplace_back(route.members.size());
  }

  Result<> open_lines(std::shared_ptr<Nccl> nccl, Clock::duration timeout) {
    PLAIT_TRY(lines_, NcclLines::open(processes_, std::move(nccl), plan_, here_, devices_,
                                      {.timeout = timeout, .stop = [inner = inner_.get()] { inner->stop(); }}));
    return {};
  }

  [[nodiscard]] const Routes& routes() const override { return inner_->routes(); }
  [[nodiscard]] std::string note() const override { return plan_.note; }

  void begin_step() override {
    take_unread();
    if (step_ == 1 && !learn()) stop();
    for (Lane& lane : lanes_) lane = {};
    for (std::vector<Entry>& members : entries_)
      for (Entry& entry : members) entry = {};
    ++step_;
    inner_->begin_step();
  }

  void send(TransferId id, Message&& message) override {
    const std::int32_t line = plan_.of_transfer[static_cast<std::size_t>(id)];
    if (line == kAbsent) return inner_->send(id, std::move(message));
    const Transfer& transfer = routes().transfers[static_cast<std::size_t>(id)];
    const c10::Device device = devices_[transfer.source.index()];
    const AccountScope scope(in_flight_account());
    Message head{.value = message.value, .tensors = {}, .counts = {}};
    const WireMessage wire = pack(std::move(message), device.type());
    head.tensors.push_back(bytes_as_tensor(
        ByteWriter().put(lanes_[static_cast<std::size_t>(line)].num_sent++).put_bytes(wire.head).take()));
    if (goes_by_hosts(line)) {
      for (const WirePiece& piece : wire.pieces) head.tensors.push_back(copy_on_host(piece, device));
    } else {
      std::vector<NcclCall> calls;
      for (const WirePiece& piece : wire.pieces)
        if (piece.size > 0)
          calls.push_back({.kind = NcclCall::Kind::kSend, .from = piece.data, .count = piece.size, .peer = 1});
      NcclLine& out = lines_->at(line, transfer.source);
      out.queue().follow_caller();
      out.issue(fmt::format("send of the {} to rank {}", describe(transfer.value), transfer.destination.value()),
                calls);
      for (const at::Tensor& tensor : wire.holders) out.queue().keep(tensor);
    }
    inner_->send(id, std::move(head));
  }

  void post_receive(TransferId id) override {
    const std::int32_t line = plan_.of_transfer[static_cast<std::size_t>(id)];
    if (line != kAbsent) lanes_[static_cast<std::size_t>(line)].posted.push_back(id);
    inner_->post_receive(id);
  }

  WaitStatus receive(TransferId id, Message& message, Clock::time_point deadline) override {
    const auto at = static_cast<std::size_t>(id);
    const std::int32_t line = plan_.of_transfer[at];
    if (line == kAbsent) return inner_->receive(id, message, deadline);
    Incoming& in = incoming_[at];
    while (in.given_in != step_) {
      const WaitStatus status = take_next(line, deadline);
      if (status != WaitStatus::kReady) return status;
    }
    message = std::exchange(in.message, Message());
    const std::shared_ptr<QueueMark> mark = std::exchange(in.mark, nullptr);
    if (mark == nullptr) return WaitStatus::kReady;
    mark->caller_follows();
    DeviceQueue& queue = lines_->at(line, routes().transfers[at].destination).queue();
    for (const at::Tensor& tensor : message.tensors) queue.lend(tensor);
    return WaitStatus::kReady;
  }

  /// What is sent is kept by the queue; only the head takes the way on which there is something to wait for.
  WaitStatus wait_sent(TransferId id, Clock::time_point deadline) override { return inner_->wait_sent(id, deadline); }

  void enter(CollectiveId id, RankId member, std::span<const at::Tensor> tensors) override {
    const auto at = static_cast<std::size_t>(id);
    const std::int32_t line = plan_.of_collective[at];
    if (line == kAbsent) return inner_->enter(id, member, tensors);
    const CollectiveRoute& route = routes().collectives[at];
    const std::size_t place = place_of(route, member);
    Entry& entry = entries_[at][place];
    if (goes_by_hosts(line)) {
      entry.brings = forms_of(tensors);
      entry.tensors.assign(tensors.begin(), tensors.end());
      for (const at::Tensor& tensor : tensors)
        entry.on_host.push_back(tensor.defined() ? tensor.to(at::TensorOptions().device(at::kCPU),
                                                             /*non_blocking=*/false, /*copy=*/true)
                                                 : at::Tensor());
      return inner_->enter(id, member, entry.on_host);
    }
    PLAIT_CHECK(brought_[at][place] == forms_of(tensors), "rank {} brings other tensors to collective {} than before",
                member.value(), id);
    NcclLine& end = lines_->at(line, member);
    end.queue().follow_caller();
    const CollectiveCalls calls = calls_of(route, place, tensors, brought_[at], end.queue(), devices_[member.index()]);
    entry.mark = end.issue(
        fmt::format("{} of the {} over {} ranks", to_string(route.kind), describe(route.value), route.members.size()),
        calls.calls);
    for (const at::Tensor& tensor : tensors) end.queue().keep(tensor);
    for (const at::Tensor& tensor : calls.scratch) end.queue().keep(tensor);
    inner_->enter(id, member, {});
  }

  WaitStatus finish(CollectiveId id, RankId member, Clock::time_point deadline) override {
    const auto at = static_cast<std::size_t>(id);
    const WaitStatus status = inner_->finish(id, member, deadline);
    if (status != WaitStatus::kReady || plan_.of_collective[at] == kAbsent) return status;
    Entry& entry = entries_[at][place_of(routes().collectives[at], member)];
    if (entry.mark != nullptr) entry.mark->caller_follows();
    for (std::size_t t = 0; t < entry.tensors.size(); ++t)
      if (entry.tensors[t].defined()) entry.tensors[t].copy_(entry.on_host[t]);
    // Who waits again finds what it made of the results since.
    entry.tensors.clear();
    entry.on_host.clear();
    return status;
  }

  [[nodiscard]] RankId awaited(CollectiveId id, RankId member) const override { return inner_->awaited(id, member); }

  void stop() override {
    if (lines_ != nullptr) lines_->stop();
    inner_->stop();
  }

 private:
  [[nodiscard]] bool goes_by_hosts(std::int32_t line) const {
    return step_ == 1 || plan_.lines[static_cast<std::size_t>(line)].way == NcclLineSpec::Way::kHosts;
  }
  [[nodiscard]] static std::size_t place_of(const CollectiveRoute& route, RankId member) {
    return static_cast<std::size_t>(std::lower_bound(route.members.begin(), route.members.end(), member) -
                                    route.members.begin());
  }

  /// Waits for the head of the lane's next message, and tells the device what comes. A lane's messages come in the order in
  /// which they were asked for.
  WaitStatus take_next(std::int32_t line, Clock::time_point deadline) {
    Lane& lane = lanes_[static_cast<std::size_t>(line)];
    PLAIT_CHECK(lane.num_given < lane.posted.size(), "a message of line {} is read before it is asked for", line);
    const TransferId id = lane.posted[lane.num_given];
    const auto at = static_cast<std::size_t>(id);
    Message head;
    const WaitStatus status = inner_->receive(id, head, deadline);
    if (status != WaitStatus::kReady) return status;
    const Transfer& transfer = routes().transfers[at];
    ByteReader in(tensor_as_bytes(head.tensors.front()));
    const auto number = in.get<std::uint64_t>();
    PLAIT_CHECK(number == lane.num_given, "the {} was message {} of its line, not {}", describe(transfer.value), number,
                lane.num_given);
    WireReceipt receipt(in.get_bytes());
    const AccountScope scope(in_flight_account());
    const c10::Device device = devices_[transfer.destination.index()];
    Incoming& incoming = incoming_[at];
    if (goes_by_hosts(line)) {
      receipt.allocate(device);
      for (std::size_t piece = 0; piece < receipt.num_pieces(); ++piece)
        receipt.buffer_tensor(piece).copy_(head.tensors[piece + 1]);
    } else {
      incoming.mark = give(line, transfer, receipt, device);
    }
    incoming.message = receipt.take();
    incoming.given_in = step_;
    ++lane.num_given;
    return WaitStatus::kReady;
  }

  std::shared_ptr<QueueMark> give(std::int32_t line, const Transfer& transfer, WireReceipt& receipt,
                                  c10::Device device) {
    NcclLine& in = lines_->at(line, transfer.destination);
    // Memory of the queue's own: nothing that the rank's stream does has to be over before.
    in.queue().inside([&] { receipt.allocate(device); });
    std::vector<NcclCall> calls;
    for (std::size_t piece = 0; piece < receipt.num_pieces(); ++piece)
      if (receipt.size_of(piece) > 0)
        calls.push_back({.kind = NcclCall::Kind::kReceive,
                         .into = receipt.buffer(piece),
                         .count = receipt.size_of(piece),
                         .peer = 0});
    auto mark = in.issue(
        fmt::format("receive of the {} from rank {}", describe(transfer.value), transfer.source.value()), calls);
    // Whoever drops the message, read or not, may do so before it has come.
    for (std::size_t piece = 0; piece < receipt.num_pieces(); ++piece) in.queue().keep(receipt.buffer_tensor(piece));
    return mark;
  }

  /// What was sent and never read must not stand in the way of the next step.
  void take_unread() {
    if (step_ < 2) return;
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(1);  // it was sent long ago
    for (std::size_t line = 0; line < lanes_.size(); ++line)
      while (lanes_[line].num_given < lanes_[line].posted.size())
        if (take_next(static_cast<std::int32_t>(line), deadline) != WaitStatus::kReady) return;
    for (Incoming& in : incoming_) in = Incoming{.given_in = in.given_in, .message = {}, .mark = nullptr};
  }

  /// What every member brings to each collective, from the first step. Whether all is well.
  bool learn() {
    ByteWriter own;
    for (std::size_t c = 0; c < entries_.size(); ++c)
      for (std::size_t place = 0; plan_.of_collective[c] != kAbsent && place < entries_[c].size(); ++place)
        if (here_.contains(routes().collectives[c].members[place]))
          own.put(c).put(place).put_list(entries_[c][place].brings);
    const auto of_all = gather_on_all(processes_, own.take());
    if (!of_all) return false;
    for (std::size_t c = 0; c < entries_.size(); ++c) brought_[c].resize(entries_[c].size());
    for (const std::string& bytes : *of_all) {
      ByteReader in(bytes);
      while (!in.done()) {
        const auto c = in.get<std::size_t>();
        const auto place = in.get<std::size_t>();
        brought_[c][place] = in.get_list<MemberTensor>();
      }
    }
    return true;
  }

  ProcessGroup& processes_;
  std::unique_ptr<Transport> inner_;
  NcclPlan plan_;
  RankRange here_;
  std::vector<c10::Device> devices_;         ///< per rank
  std::unique_ptr<NcclLines> lines_;         ///< behind `inner_`, which it stops
  std::vector<Incoming> incoming_;           ///< per transfer
  std::vector<Lane> lanes_;                  ///< per line; of messages one end of each is here, or none
  std::vector<std::vector<Entry>> entries_;  ///< per collective and member
  std::vector<std::vector<std::vector<MemberTensor>>> brought_;  ///< the same, from the second step on
  std::uint64_t step_ = 0;                                       ///< written between steps only
};

}  // namespace

Result<std::unique_ptr<Transport>> open_nccl(ProcessGroup& processes, std::shared_ptr<Nccl> nccl,
                                             std::unique_ptr<Transport> inner, RankRange here,
                                             Clock::duration timeout) {
  const Routes& routes = inner->routes();
  std::vector<c10::Device> devices = routes.devices;
  devices.resize(static_cast<std::size_t>(routes.num_ranks), c10::Device(c10::DeviceType::CPU));
  ByteWriter own;
  for (std::int32_t rank = here.begin; rank < here.end; ++rank) {
    PLAIT_TRY(const std::string gpu, nccl->name_of(devices[static_cast<std::size_t>(rank)]));
    own.put_bytes(name_of_machine() + " " + gpu);
  }
  PLAIT_TRY(const std::vector<std::string> of_all, gather_on_all(processes, own.take()));
  std::vector<std::string> gpus;
  std::vector<int> process_of;
  for (std::size_t process = 0; process < of_all.size(); ++process) {
    ByteReader in(of_all[process]);
    while (!in.done()) {
      gpus.emplace_back(in.get_bytes());
      process_of.push_back(static_cast<int>(process));
    }
  }
  NcclPlan plan = plan_nccl(routes, process_of, gpus);
  auto transport =
      std::make_unique<NcclTransport>(processes, std::move(inner), std::move(plan), here, std::move(devices));
  PLAIT_TRY_VOID(transport->open_lines(std::move(nccl), timeout));
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace plait
