#include "plait/run/engine/segments.h"

#include "plait/base/check.h"

#include <ATen/ops/add.h>

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
  const auto n = tensor.numel();
  const std::int64_t begin = static_cast<std::int64_t>(i) * n / static_cast<std::int64_t>(count);
  const std::int64_t end = static_cast<std::int64_t>(i + 1) * n / static_cast<std::int64_t>(count);
  return tensor.view(-1).slice(0, begin, end);
}

/// `out` is one of the summands: the sums before its turn go to a temporary, so that the order is that of the members.
void sum_into(at::Tensor out, const std::vector<at::Tensor>& summands) {
  at::Tensor sum = summands[0];
  for (std::size_t i = 1; i + 1 < summands.size(); ++i) {
    if (i == 1) {
      sum = at::add(sum, summands[i]);
    } else {
      sum.add_(summands[i]);
    }
  }
  at::add_out(out, sum, summands.back());
}

}  // namespace

void sum_segment(const MemberTensors& tensors, std::size_t me) {
  for (std::size_t t = 0; t < tensors[me].size(); ++t) {
    if (!tensors[me][t].defined()) continue;
    const std::vector<std::size_t> holders = holders_of(tensors, t);
    if (holders.size() == 1) continue;
    std::size_t mine = 0;
    while (holders[mine] != me) ++mine;
    std::vector<at::Tensor> summands;
    for (const std::size_t holder : holders) summands.push_back(segment(tensors[holder][t], mine, holders.size()));
    sum_into(summands[mine], summands);
  }
}

void sum_whole(const MemberTensors& tensors, std::size_t me) {
  for (std::size_t t = 0; t < tensors[me].size(); ++t) {
    if (!tensors[me][t].defined()) continue;
    std::vector<at::Tensor> summands;
    for (const std::size_t holder : holders_of(tensors, t)) summands.push_back(tensors[holder][t].view(-1));
    if (summands.size() > 1) sum_into(tensors[me][t].view(-1), summands);
  }
}

void copy_other_segments(const MemberTensors& tensors, std::size_t me) {
  for (std::size_t t = 0; t < tensors[me].size(); ++t) {
    if (!tensors[me][t].defined()) continue;
    const std::vector<std::size_t> holders = holders_of(tensors, t);
    for (std::size_t place = 0; place < holders.size(); ++place) {
      if (holders[place] == me) continue;
      segment(tensors[me][t], place, holders.size()).copy_(segment(tensors[holders[place]][t], place, holders.size()));
    }
  }
}

void copy_whole(const MemberTensors& tensors, std::size_t from, std::size_t me) {
  for (std::size_t t = 0; t < tensors[me].size(); ++t) {
    if (!tensors[me][t].defined() || !tensors[from][t].defined()) continue;
    tensors[me][t].copy_(tensors[from][t]);
  }
}

}  // namespace plait
