#include "plait/run/processes/nccl_calls.h"

#include "plait/base/check.h"
#include "plait/run/engine/segments.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace plait {
namespace {

/// The members that bring a tensor, and what it is.
struct Holders {
  std::vector<bool> brings;
  std::size_t count = 0;
  MemberTensor form;
};

Holders holders_of(const std::vector<MemberTensorList>& brings, std::size_t t) {
  Holders holders{.brings = std::vector<bool>(brings.size()), .count = 0, .form = {}};
  for (std::size_t member = 0; member < brings.size(); ++member) {
    PLAIT_CHECK(t < brings[member].size(), "member {} brought {} tensors", member, brings[member].size());
    const MemberTensor& form = brings[member][t];
    if (form.num_elements < 0) continue;
    PLAIT_CHECK(holders.count == 0 || form == holders.form, "tensor {} differs in size or type between members", t);
    holders.form = form;
    holders.brings[member] = true;
    ++holders.count;
  }
  return holders;
}

/// One tensor's calls.
class Writer {
 public:
  Writer(const CollectiveRoute& route, std::size_t place, const Holders& holders, char* data,
         std::vector<NcclCall>& calls)
      : place_(place),
        root_(static_cast<std::size_t>(std::find(route.members.begin(), route.members.end(), route.root) -
                                       route.members.begin())),
        num_members_(route.members.size()),
        holders_(holders),
        data_(data),
        calls_(calls) {}

  void write(CollectiveKind kind) {
    const std::int64_t all = holders_.form.num_elements;
    switch (kind) {
      case CollectiveKind::kAllReduce:
        if (holders_.count > 1) add(NcclCall::Kind::kAllReduce, 0, all, root_);
        return;
      case CollectiveKind::kReduce: return add(NcclCall::Kind::kReduce, 0, all, root_);
      case CollectiveKind::kBroadcast:
        if (holders_.brings[root_]) add(NcclCall::Kind::kBroadcast, 0, all, root_);
        return;
      case CollectiveKind::kReduceScatter:
        if (is_even()) return add_even(NcclCall::Kind::kReduceScatter);
        for (std::size_t i = 0; i < num_members_; ++i) add_segment(NcclCall::Kind::kReduce, i);
        return;
      case CollectiveKind::kAllGather:
        if (is_even() && holders_.count == num_members_) return add_even(NcclCall::Kind::kAllGather);
        for (std::size_t i = 0; i < num_members_; ++i)
          if (holders_.brings[i]) add_segment(NcclCall::Kind::kBroadcast, i);
        return;
      case CollectiveKind::kAllToAll: PLAIT_CHECK(false, "all_to_all is refused at binding");
    }
  }

 private:
  [[nodiscard]] bool is_even() const {
    return holders_.form.num_elements % static_cast<std::int64_t>(num_members_) == 0;
  }
  [[nodiscard]] char* element(std::int64_t index) const {
    return data_ + index * static_cast<std::int64_t>(c10::elementSize(holders_.form.type));
  }

  void add(NcclCall::Kind kind, std::int64_t begin, std::int64_t end, std::size_t root) {
    if (begin == end) return;
    calls_.push_back({.kind = kind,
                      .from = element(begin),
                      .into = element(begin),
                      .count = static_cast<std::size_t>(end - begin),
                      .type = holders_.form.type,
                      .peer = static_cast<int>(root)});
  }
  void add_segment(NcclCall::Kind kind, std::size_t i) {
    add(kind, segment_begin(holders_.form.num_elements, i, num_members_),
        segment_begin(holders_.form.num_elements, i + 1, num_members_), i);
  }

  /// The member's own segment lies in its place of the whole: NCCL's form for work in place.
  void add_even(NcclCall::Kind kind) {
    const std::int64_t share = holders_.form.num_elements / static_cast<std::int64_t>(num_members_);
    char* const own = element(static_cast<std::int64_t>(place_) * share);
    const bool scatters = kind == NcclCall::Kind::kReduceScatter;
    calls_.push_back({.kind = kind,
                      .from = scatters ? data_ : own,
                      .into = scatters ? own : data_,
                      .count = static_cast<std::size_t>(share),
                      .type = holders_.form.type});
  }

  std::size_t place_;
  std::size_t root_;
  std::size_t num_members_;
  const Holders& holders_;
  char* data_;
  std::vector<NcclCall>& calls_;
};

}  // namespace

MemberTensorList forms_of(std::span<const at::Tensor> tensors) {
  MemberTensorList forms;
  for (const at::Tensor& tensor : tensors)
    forms.push_back(tensor.defined() ? MemberTensor{.num_elements = tensor.numel(), .type = tensor.scalar_type()}
                                     : MemberTensor{});
  return forms;
}

CollectiveCalls calls_of(const CollectiveRoute& route, std::size_t place, std::span<const at::Tensor> tensors,
                         const std::vector<MemberTensorList>& brings, DeviceQueue& queue, c10::Device device) {
  CollectiveCalls out;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const Holders holders = holders_of(brings, t);
    if (holders.count == 0 || holders.form.num_elements == 0) continue;
    at::Tensor tensor = tensors[t];
    if (!tensor.defined()) {
      queue.inside([&] {
        tensor = at::zeros({holders.form.num_elements}, at::TensorOptions().dtype(holders.form.type).device(device));
      });
      out.scratch.push_back(tensor);
    }
    PLAIT_CHECK(tensor.is_contiguous(), "tensor {} has gaps", t);
    Writer(route, place, holders, static_cast<char*>(tensor.mutable_data_ptr()), out.calls).write(route.kind);
  }
  return out;
}

}  // namespace plait
