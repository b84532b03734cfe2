#pragma once

#include "plait/ir/program.h"
#include "plait/sim/engine_memory/ledger.h"
#include "plait/sim/model_shape.h"

#include <cstdint>
#include <vector>

namespace plait::ledger {

/// Tensors that share an allocation: the rows of one matrix product's weight, or a single tensor.
struct Storage {
  std::vector<std::int64_t> members;  ///< elements of each tensor
  bool is_table = false;              ///< of the tokens
  [[nodiscard]] std::int64_t size() const;
};
/// What a part owns, as plait/run/model/parameters.cpp allocates it.
std::vector<Storage> storages_of(const ModelShape& shape, PartKind part);

/// One parameter group on one rank: what stands there from the start, and what comes and goes.
class Group {
 public:
  Group(RankId rank, const Layout& layout, GroupId id, const ModelShape& shape, const std::vector<bool>& runs_here,
        Ledger& ledger);

  [[nodiscard]] bool is_whole() const { return num_shares_ == 1; }
  [[nodiscard]] std::int64_t weight_bytes() const { return weight_bytes_; }
  [[nodiscard]] std::int64_t gradient_bytes() const { return gradient_bytes_; }

  void begin_step() { folded_ = false; }
  [[nodiscard]] Tensors new_weights(Use use) const;
  [[nodiscard]] Tensors new_gradients(Use use) const;
  void bind(Tensors weights) { weights_ = std::move(weights); }
  void drop_weights() { weights_.clear(); }
  void begin_contribution();
  void fold();
  /// \param lends  where what a home keeps is copied: the rank's own, or somebody else's account
  Tensors take_partial(Use use_of_copy, bool copies_here);
  void add_partial(Tensors partial);
  [[nodiscard]] Tensors partial() const;
  /// A step that is validated later keeps masters and moments as they were.
  void keep_undo();
  void drop_undo() { undo_.clear(); }

 private:
  struct Held {
    std::int64_t size = 0;
    int num_uses = 0;
    bool is_here = false;
    Tensors gradients;  ///< per use; of a home that holds the whole, they are among the static blocks
  };

  Ledger& ledger_;
  std::int64_t element_bytes_;
  std::int64_t master_bytes_;
  int num_shares_ = 0;  ///< 1: the whole; 0: nothing; else a shard
  std::vector<Held> held_;
  Tensors static_;
  Tensors weights_;
  Tensors undo_;
  std::vector<std::int64_t> kept_;  ///< elements of each tensor that is stepped here
  std::int64_t weight_bytes_ = 0;
  std::int64_t gradient_bytes_ = 0;
  bool folded_ = false;
};

}  // namespace plait::ledger
