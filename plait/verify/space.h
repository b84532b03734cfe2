#pragma once

#include "plait/ir/program.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace plait::verifying {

/// Dense number of a value; tables over values are arrays.
using Cell = std::uint32_t;

/// Numbers the values of a layout and answers who neighbours whom in constant time.
///
/// Cells of a data value of one subject (edge or stage) lie together, micro-batch by micro-batch, slices innermost, so a
/// rank that walks its row touches few cache lines.
class Space {
 public:
  /// The layout must have passed check_layout.
  explicit Space(const Layout& layout);

  [[nodiscard]] const Layout& layout() const { return *layout_; }
  [[nodiscard]] std::size_t num_cells() const { return num_cells_; }
  [[nodiscard]] int num_slices() const { return num_slices_; }
  [[nodiscard]] std::size_t cells_per_stage() const { return per_subject_; }
  [[nodiscard]] bool trains() const { return layout_->mode == Mode::kTrain; }

  [[nodiscard]] Cell cell(Value v) const {
    const auto kind = static_cast<std::size_t>(v.kind());
    return base_[kind] + static_cast<Cell>(v.edge().value()) * stride_[kind] +
           static_cast<Cell>(v.microbatch().value() * num_slices_ + v.slice().value());
  }
  [[nodiscard]] Cell cell(ValueKind kind, std::int32_t subject, MicrobatchId m, SliceId q) const {
    const auto k = static_cast<std::size_t>(kind);
    return base_[k] + static_cast<Cell>(subject) * stride_[k] + static_cast<Cell>(m.value() * num_slices_ + q.value());
  }
  [[nodiscard]] Cell weight(GroupId g) const {
    return base_[static_cast<std::size_t>(ValueKind::kWeight)] + static_cast<Cell>(g.value());
  }
  [[nodiscard]] Cell weight_grad(GroupId g) const {
    return base_[static_cast<std::size_t>(ValueKind::kWeightGrad)] + static_cast<Cell>(g.value());
  }
  [[nodiscard]] Cell norm() const { return base_[static_cast<std::size_t>(ValueKind::kNorm)]; }
  /// The value of a cell, for messages.
  [[nodiscard]] Value value(Cell cell) const;
  /// Index of a stage, micro-batch and slice in tables over ops.
  [[nodiscard]] std::size_t op_index(const Op& op) const {
    return op.stage.index() * per_subject_ +
           static_cast<std::size_t>(op.microbatch.value() * num_slices_ + op.slice.value());
  }

  [[nodiscard]] bool has(const Op& op) const {
    return below(op.stage.value(), layout_->num_stages()) && below(op.microbatch.value(), layout_->num_microbatches) &&
           below(op.slice.value(), num_slices_);
  }
  [[nodiscard]] bool has(RankId rank) const { return below(rank.value(), layout_->num_ranks); }
  [[nodiscard]] bool has(GroupId group) const { return below(group.value(), static_cast<int>(layout_->groups.size())); }
  [[nodiscard]] bool has(RankSetId set) const {
    return below(set.value(), static_cast<int>(layout_->rank_sets.size()));
  }
  /// Whether the coordinates of the value lie inside the layout.
  [[nodiscard]] bool has(Value v) const {
    switch (v.kind()) {
      case ValueKind::kActivation:
      case ValueKind::kGradient: return below(v.edge().value(), static_cast<int>(layout_->edges.size())) && has_data(v);
      case ValueKind::kStash:
      case ValueKind::kWeightStash:
      case ValueKind::kKv:
      case ValueKind::kKvGrad: return below(v.stage().value(), layout_->num_stages()) && has_data(v);
      case ValueKind::kWeight:
      case ValueKind::kWeightGrad: return has(v.group());
      case ValueKind::kNorm: return true;
    }
    return false;
  }

  [[nodiscard]] std::span<const EdgeId> into(StageId s) const { return into_.of(s.index()); }
  [[nodiscard]] std::span<const EdgeId> out_of(StageId s) const { return out_of_.of(s.index()); }
  /// Groups that live on a rank, ascending.
  [[nodiscard]] std::span<const GroupId> groups_on(RankId r) const { return groups_on_.of(r.index()); }
  [[nodiscard]] bool is_home(const ParamGroup& group, RankId rank) const;

 private:
  /// Rows of different lengths in one array.
  template <class T>
  struct Ragged {
    std::vector<std::uint32_t> begin;
    std::vector<T> items;
    [[nodiscard]] std::span<const T> of(std::size_t row) const {
      return std::span(items).subspan(begin[row], begin[row + 1] - begin[row]);
    }
  };
  template <class T>
  static Ragged<T> pack(const std::vector<std::vector<T>>& rows);

  static bool below(std::int32_t value, int bound) { return value >= 0 && value < bound; }
  [[nodiscard]] bool has_data(Value v) const {
    return below(v.microbatch().value(), layout_->num_microbatches) && below(v.slice().value(), num_slices_);
  }

  static constexpr std::size_t kNumKinds = 9;
  const Layout* layout_;
  int num_slices_;
  std::size_t per_subject_;
  std::size_t num_cells_ = 0;
  Cell base_[kNumKinds] = {};
  Cell stride_[kNumKinds] = {};
  Ragged<EdgeId> into_;
  Ragged<EdgeId> out_of_;
  Ragged<GroupId> groups_on_;
};

}  // namespace plait::verifying
