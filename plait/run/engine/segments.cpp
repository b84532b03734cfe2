#include "plait/run/engine/segments.h"

#include "plait/base/check.h"

#include <ATen/ops/add.h>

#include <algorithm>
#include <array>

namespace plait {
namespace {

/// Members that take part in tensor `t`, ascending.
std::vector<std::size_t> holders_of(const MemberTensors& tensors, std::size_t t) {
  std::vector<std::size_t> holders;
  for (std::size_t member = 0; member < tensors.size(); ++member) {
    PLAIT_CHECK(t < tensors[member].size(), "member {} brought {} tensors", member, tensors[member].size());
    const at::Tensor& tensor = tensors[member][t];
    if (!tensor.defined()) continue;
    PLAIT_CHECK(tensor.is_contiguous(), "tensor {} of member {} has gaps", t, member);
    if (!holders.empty()) {
      const at::Tensor& first = tensors[holders.front()][t];
      PLAIT_CHECK(tensor.sizes() == first.sizes() && tensor.scalar_type() == first.scalar_type(),
                  "tensor {} differs in shape or type between members {} and {}", t, holders.front(), member);
    }
    holders.push_back(member);
  }
  return holders;
}

at::Tensor segment(const at::Tensor& tensor, std::size_t i, std::size_t count) {
  const std::int64_t begin = segment_begin(tensor.numel(), i, count);
  return tensor.view(-1).slice(0, begin, segment_begin(tensor.numel(), i + 1, count));
}

/// Through a block on the stack: what a share costs its thread in memory does not depend on who does it.
template <class T>
void sum_blocks(std::span<const at::Tensor> outs, std::span<const at::Tensor> summands) {
  constexpr std::int64_t kBlock = 1024;  // elements; 8 KiB of fp64, well inside a first-level cache
  std::array<T, kBlock> sum;
  const std::int64_t n = summands[0].numel();
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, n - begin);
    std::copy_n(summands[0].const_data_ptr<T>() + begin, size, sum.begin());
    for (const at::Tensor& summand : summands.subspan(1)) {
      const T* values = summand.const_data_ptr<T>() + begin;
      for (std::int64_t i = 0; i < size; ++i) sum[static_cast<std::size_t>(i)] += values[i];
    }
    for (const at::Tensor& out : outs) std::copy_n(sum.begin(), size, out.mutable_data_ptr<T>() + begin);
  }
}

std::vector<at::Tensor> segments_of(const MemberTensors& tensors, std::size_t t,
                                    const std::vector<std::size_t>& members, std::size_t i, std::size_t count) {
  std::vector<at::Tensor> segments;
  for (const std::size_t member : members) segments.push_back(segment(tensors[member][t], i, count));
  return segments;
}

void sum_for_all(const MemberTensors& tensors, std::size_t t, std::size_t i) {
  const std::vector<std::size_t> holders = holders_of(tensors, t);
  const auto mine = std::find(holders.begin(), holders.end(), i);
  if (mine == holders.end() || holders.size() == 1) return;
  const auto segments =
      segments_of(tensors, t, holders, static_cast<std::size_t>(mine - holders.begin()), holders.size());
  sum_in_order(segments, segments);
}

void sum_for_one(const MemberTensors& tensors, std::size_t t, std::size_t one, std::size_t i) {
  const std::vector<std::size_t> holders = holders_of(tensors, t);
  if (holders.empty()) return;
  PLAIT_CHECK(tensors[one][t].defined(), "member {} has no tensor {} to sum into", one, t);
  const at::Tensor out = segment(tensors[one][t], i, tensors.size());
  sum_in_order({&out, 1}, segments_of(tensors, t, holders, i, tensors.size()));
}

void copy_from_one(const MemberTensors& tensors, std::size_t t, std::size_t one, std::size_t i) {
  const std::vector<std::size_t> holders = holders_of(tensors, t);
  if (!tensors[one][t].defined()) return;
  const at::Tensor from = segment(tensors[one][t], i, tensors.size());
  for (const std::size_t holder : holders)
    if (holder != one) segment(tensors[holder][t], i, tensors.size()).copy_(from);
}

}  // namespace

void sum_in_order(std::span<const at::Tensor> outs, std::span<const at::Tensor> summands) {
  const at::Tensor& first = summands[0];
  if (first.is_cpu() && first.scalar_type() == at::kFloat) return sum_blocks<float>(outs, summands);
  if (first.is_cpu() && first.scalar_type() == at::kDouble) return sum_blocks<double>(outs, summands);
  at::Tensor sum = first.clone();
  for (const at::Tensor& summand : summands.subspan(1)) sum.add_(summand.to(sum.device()));
  for (const at::Tensor& out : outs) out.copy_(sum);
}

std::int64_t segment_begin(std::int64_t num_elements, std::size_t i, std::size_t count) {
  return static_cast<std::int64_t>(i) * num_elements / static_cast<std::int64_t>(count);
}

void do_share(CollectiveKind kind, const MemberTensors& tensors, std::size_t root, std::size_t i) {
  for (std::size_t t = 0; t < tensors.front().size(); ++t) {
    switch (kind) {
      case CollectiveKind::kAllReduce: sum_for_all(tensors, t, i); break;
      case CollectiveKind::kReduce: sum_for_one(tensors, t, root, i); break;
      case CollectiveKind::kReduceScatter: sum_for_one(tensors, t, i, i); break;
      case CollectiveKind::kAllGather: copy_from_one(tensors, t, i, i); break;
      case CollectiveKind::kBroadcast: copy_from_one(tensors, t, root, i); break;
      case CollectiveKind::kAllToAll: PLAIT_CHECK(false, "all_to_all is refused at binding");
    }
  }
}

}  // namespace plait
