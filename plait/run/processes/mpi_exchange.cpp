#include "plait/run/processes/mpi_exchange.h"

#include "plait/base/check.h"
#include "plait/run/engine/memory.h"
#include "plait/run/engine/rank_worker.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace plait {
namespace {

constexpr std::size_t kSmall = 2048;  // bytes of a process's members that go along with the announcement

std::size_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace

MpiExchange::MpiExchange(const CollectiveRoute& route, const Context& context, int tag, std::vector<int> processes)
    : route_(route), context_(context), tag_(tag), processes_(std::move(processes)) {
  for (const int process : processes_)
    if (process != context_.process && (others_.empty() || others_.back() != process)) others_.push_back(process);
  root_ = static_cast<std::size_t>(std::find(route_.members.begin(), route_.members.end(), route_.root) -
                                   route_.members.begin());
  begin_step();
}

void MpiExchange::begin_step() {
  entered_.assign(processes_.size(), false);
  tensors_.assign(processes_.size(), {});
  announced_.assign(processes_.size(), {});
  elements_.assign(processes_.size(), {});
  all_inline_ = true;
  under_way_ = false;
}

bool MpiExchange::enter(std::size_t member, std::span<const at::Tensor> tensors) {
  under_way_ = true;
  tensors_[member].assign(tensors.begin(), tensors.end());
  for (const at::Tensor& tensor : tensors) {
    PLAIT_CHECK(!tensor.defined() || (tensor.is_contiguous() && tensor.is_cpu()), "a tensor has gaps or is elsewhere");
    announced_[member].push_back(
        tensor.defined() ? MemberTensor{.num_elements = tensor.numel(), .type = tensor.scalar_type()} : MemberTensor{});
  }
  entered_[member] = true;
  for (std::size_t i = 0; i < processes_.size(); ++i)
    if (is_here(i) && !entered_[i]) return false;
  return true;
}

std::string MpiExchange::announcement() const {
  std::size_t bytes = 0;
  for (std::size_t member = 0; member < processes_.size(); ++member)
    if (is_here(member)) bytes += bytes_of(tensors_[member]);
  const bool along = bytes <= kSmall;
  ByteWriter out;
  out.put(along);
  for (std::size_t member = 0; member < processes_.size(); ++member) {
    if (!is_here(member)) continue;
    out.put_list(announced_[member]);
    if (!along) continue;
    ByteWriter elements;
    for (const at::Tensor& tensor : tensors_[member])
      if (tensor.defined() && tensor.nbytes() > 0) elements.append(tensor.const_data_ptr(), tensor.nbytes());
    out.put_bytes(elements.bytes());
  }
  return out.take();
}

void MpiExchange::on_announcement(int process, std::string_view bytes) {
  ByteReader in(bytes);
  const bool along = in.get<bool>();
  all_inline_ &= along;
  for (std::size_t member = 0; member < processes_.size(); ++member) {
    if (processes_[member] != process) continue;
    announced_[member] = in.get_list<MemberTensor>();
    if (along) elements_[member] = in.get_bytes();
    entered_[member] = true;
  }
}

bool MpiExchange::all_in() const {
  return std::find(entered_.begin(), entered_.end(), false) == entered_.end();
}

bool MpiExchange::is_copy() const {
  return route_.kind == CollectiveKind::kAllGather || route_.kind == CollectiveKind::kBroadcast;
}

void MpiExchange::start_if_all_in(std::function<void()> done) {
  if (!all_in()) return;
  done_ = std::move(done);
  std::size_t bytes = 0;
  for (const std::vector<at::Tensor>& tensors : tensors_) bytes += bytes_of(tensors);
  if (all_inline_ && bytes <= kSmall) {
    do_inline();
    finish();
    return;
  }
  blocks_ = plan_exchange(route_.kind, announced_, root_, processes_);
  pending_ = 1;  // until all of the phase is posted
  if (is_copy()) {
    phase_ = Phase::kResults;
    send_results();
  } else {
    phase_ = Phase::kSummands;
    send_summands();
  }
  one_is_through();
}

/// With the elements that came along, as if all members shared memory.
void MpiExchange::do_inline() {
  const AccountScope scope(in_flight_account());
  MemberTensors all = tensors_;
  for (std::size_t member = 0; member < processes_.size(); ++member) {
    if (is_here(member)) continue;
    ByteReader in(elements_[member]);
    for (const MemberTensor& form : announced_[member]) {
      at::Tensor& tensor = all[member].emplace_back();
      if (form.num_elements < 0) continue;
      tensor = at::empty({form.num_elements}, at::TensorOptions().dtype(form.type));
      const std::string_view data = in.next(tensor.nbytes());
      if (!data.empty()) std::memcpy(tensor.mutable_data_ptr(), data.data(), data.size());
    }
  }
  // Members' shapes may differ from the flat ones that came along.
  for (std::vector<at::Tensor>& tensors : all)
    for (at::Tensor& tensor : tensors)
      if (tensor.defined()) tensor = tensor.view(-1);
  for (std::size_t share = 0; share < processes_.size(); ++share) do_share(route_.kind, all, root_, share);
}

at::Tensor MpiExchange::segment(std::size_t member, const ExchangeBlock& block) const {
  return tensors_[member][block.tensor].view(-1).slice(0, block.begin, block.end);
}

void MpiExchange::send(const at::Tensor& from, int process, int tag) {
  pending_ += context_.requests->send(from.const_data_ptr(), from.nbytes(), process, tag, context_.bytes,
                                      [this] { one_is_through(); });
}

void MpiExchange::receive(const at::Tensor& into, int process, int tag) {
  pending_ += context_.requests->receive(into.mutable_data_ptr(), into.nbytes(), process, tag, context_.bytes,
                                         [this] { one_is_through(); });
}

void MpiExchange::send_summands() {
  const AccountScope scope(in_flight_account());
  summands_.assign(blocks_.size(), {});
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const ExchangeBlock& block = blocks_[b];
    for (const std::size_t source : block.sources) {
      if (block.worker != context_.process) {
        if (is_here(source)) send(segment(source, block), block.worker, tag_);
        continue;
      }
      at::Tensor& summand = summands_[b].emplace_back();
      if (is_here(source)) {
        summand = segment(source, block);
      } else {
        summand =
            at::empty({block.end - block.begin}, at::TensorOptions().dtype(announced_[source][block.tensor].type));
        receive(summand, processes_[source], tag_);
      }
    }
  }
}

void MpiExchange::sum() {
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const ExchangeBlock& block = blocks_[b];
    if (block.worker != context_.process) continue;
    std::vector<at::Tensor> outs;
    for (const std::size_t out : block.outs)
      if (is_here(out)) outs.push_back(segment(out, block));
    sum_in_order(outs, summands_[b]);
  }
}

/// On the worker: a tensor of this process that holds the block's result.
at::Tensor MpiExchange::result_of(const ExchangeBlock& block) const {
  if (is_copy()) return segment(block.sources.front(), block);
  const auto out = std::find_if(block.outs.begin(), block.outs.end(), [&](std::size_t o) { return is_here(o); });
  PLAIT_CHECK(out != block.outs.end(), "who sums has no use for the sum");
  return segment(*out, block);
}

void MpiExchange::send_results() {
  for (const ExchangeBlock& block : blocks_) {
    if (block.worker == context_.process) {
      int last = context_.process;
      for (const std::size_t out : block.outs) {
        // Members stand in the order of their processes.
        if (processes_[out] == context_.process || processes_[out] == last) continue;
        last = processes_[out];
        send(result_of(block), last, tag_ + 1);
      }
      continue;
    }
    const auto out = std::find_if(block.outs.begin(), block.outs.end(), [&](std::size_t o) { return is_here(o); });
    if (out != block.outs.end()) receive(segment(*out, block), block.worker, tag_ + 1);
  }
}

/// To the members of this process that did not get a result themselves.
void MpiExchange::copy_results() {
  for (const ExchangeBlock& block : blocks_) {
    at::Tensor from = block.worker == context_.process ? result_of(block) : at::Tensor();
    for (const std::size_t out : block.outs) {
      if (!is_here(out)) continue;
      const at::Tensor into = segment(out, block);
      if (!from.defined())
        from = into;
      else if (from.const_data_ptr() != into.const_data_ptr())
        into.copy_(from);
    }
  }
}

void MpiExchange::one_is_through() {
  if (--pending_ == 0) go_on();
}

void MpiExchange::go_on() {
  if (phase_ == Phase::kSummands) {
    context_.world->defer([this] { sum(); },
                          [this] {
                            summands_.clear();
                            phase_ = Phase::kResults;
                            pending_ = 1;
                            send_results();
                            one_is_through();
                          });
    return;
  }
  context_.world->defer([this] { copy_results(); }, [this] { finish(); });
}

void MpiExchange::finish() {
  for (std::vector<at::Tensor>& tensors : tensors_) tensors.clear();
  blocks_.clear();
  under_way_ = false;
  std::exchange(done_, nullptr)();
}

}  // namespace plait
