#include "plait/verify/space.h"

#include <algorithm>

namespace plait::verifying {

template <class T>
Space::Ragged<T> Space::pack(const std::vector<std::vector<T>>& rows) {
  Ragged<T> packed;
  packed.begin.push_back(0);
  for (const std::vector<T>& row : rows) {
    packed.items.insert(packed.items.end(), row.begin(), row.end());
    packed.begin.push_back(static_cast<std::uint32_t>(packed.items.size()));
  }
  return packed;
}

Space::Space(const Layout& layout)
    : layout_(&layout),
      num_slices_(layout.num_slices),
      per_subject_(static_cast<std::size_t>(layout.num_microbatches) * static_cast<std::size_t>(layout.num_slices)) {
  const std::size_t counts[kNumKinds] = {layout.edges.size(),  layout.edges.size(),  layout.stages.size(),
                                         layout.stages.size(), layout.stages.size(), layout.stages.size(),
                                         layout.groups.size(), layout.groups.size(), 1};
  for (std::size_t kind = 0; kind < kNumKinds; ++kind) {
    // Whole sequences leave no keys and values between ops.
    const bool sliced_only =
        kind == static_cast<std::size_t>(ValueKind::kKv) || kind == static_cast<std::size_t>(ValueKind::kKvGrad);
    const bool per_data = kind <= static_cast<std::size_t>(ValueKind::kKvGrad);
    base_[kind] = static_cast<Cell>(num_cells_);
    stride_[kind] = per_data ? static_cast<Cell>(per_subject_) : 1;
    if (!sliced_only || num_slices_ > 1) num_cells_ += counts[kind] * stride_[kind];
  }

  std::vector<std::vector<EdgeId>> into(layout.stages.size());
  std::vector<std::vector<EdgeId>> out_of(layout.stages.size());
  for (std::size_t e = 0; e < layout.edges.size(); ++e) {
    into[layout.edges[e].consumer.index()].push_back(EdgeId{static_cast<std::int32_t>(e)});
    out_of[layout.edges[e].producer.index()].push_back(EdgeId{static_cast<std::int32_t>(e)});
  }
  std::vector<std::vector<GroupId>> groups_on(static_cast<std::size_t>(layout.num_ranks));
  for (std::size_t g = 0; g < layout.groups.size(); ++g)
    for (const RankId home : layout.groups[g].homes)
      groups_on[home.index()].push_back(GroupId{static_cast<std::int32_t>(g)});
  into_ = pack(into);
  out_of_ = pack(out_of);
  groups_on_ = pack(groups_on);
}

Value Space::value(Cell cell) const {
  std::size_t kind = kNumKinds - 1;
  // Empty kinds share their base with the next one, so the last base at or below the cell is the right one.
  while (base_[kind] > cell) --kind;
  const Cell offset = cell - base_[kind];
  const auto subject = static_cast<std::int32_t>(offset / stride_[kind]);
  const auto data = static_cast<std::int32_t>(offset % stride_[kind]);
  const MicrobatchId m{data / num_slices_};
  const SliceId q{data % num_slices_};
  switch (static_cast<ValueKind>(kind)) {
    case ValueKind::kActivation: return Value::activation(EdgeId{subject}, m, q);
    case ValueKind::kGradient: return Value::gradient(EdgeId{subject}, m, q);
    case ValueKind::kStash: return Value::stash(StageId{subject}, m, q);
    case ValueKind::kWeightStash: return Value::weight_stash(StageId{subject}, m, q);
    case ValueKind::kKv: return Value::kv(StageId{subject}, m, q);
    case ValueKind::kKvGrad: return Value::kv_grad(StageId{subject}, m, q);
    case ValueKind::kWeight: return Value::weight(GroupId{subject});
    case ValueKind::kWeightGrad: return Value::weight_grad(GroupId{subject});
    case ValueKind::kNorm: return Value::norm();
  }
  return Value::norm();
}

bool Space::is_home(const ParamGroup& group, RankId rank) const {
  return std::find(group.homes.begin(), group.homes.end(), rank) != group.homes.end();
}

}  // namespace plait::verifying
