#include "plait/run/train/batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace plait {
namespace {

/// One row of the two tensors at `tokens` and `targets`, T ids each.
void fill_row(const TokenRows& rows, std::int64_t row_idx, std::int64_t* tokens, std::int64_t* targets) {
  const auto row = rows.row(row_idx);
  const auto counts = rows.row_counts(row_idx);
  for (std::size_t t = 0; t + 1 < row.size(); ++t) {
    tokens[t] = row[t];
    targets[t] = counts.empty() || counts[t + 1] != 0 ? row[t + 1] : kIgnoredTarget;
  }
}

}  // namespace

Microbatch make_microbatch(const TokenRows& rows, std::span<const std::int64_t> row_indices) {
  const auto num_rows = static_cast<std::int64_t>(row_indices.size());
  const std::int64_t num_tokens = rows.row_size - 1;
  Microbatch microbatch{.tokens = at::empty({num_rows, num_tokens}, at::kLong),
                        .targets = at::empty({num_rows, num_tokens}, at::kLong)};
  auto* tokens = microbatch.tokens.data_ptr<std::int64_t>();
  auto* targets = microbatch.targets.data_ptr<std::int64_t>();
  for (std::int64_t b = 0; b < num_rows; ++b)
    fill_row(rows, row_indices[static_cast<std::size_t>(b)], tokens + b * num_tokens, targets + b * num_tokens);
  return microbatch;
}

std::vector<Microbatch> step_microbatches(const TokenRows& rows, Sampler& sampler, std::int64_t position,
                                          int num_microbatches, std::int64_t microbatch_size) {
  std::vector<Microbatch> microbatches;
  std::vector<std::int64_t> indices(static_cast<std::size_t>(microbatch_size));
  for (int m = 0; m < num_microbatches; ++m) {
    for (std::int64_t& index : indices) index = sampler.row_at(position++);
    microbatches.push_back(make_microbatch(rows, indices));
  }
  return microbatches;
}

std::int64_t count_valid(const std::vector<Microbatch>& microbatches) {
  std::int64_t count = 0;
  for (const Microbatch& microbatch : microbatches) {
    const auto* targets = microbatch.targets.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < microbatch.targets.numel(); ++i) count += targets[i] != kIgnoredTarget ? 1 : 0;
  }
  return count;
}

std::vector<Microbatch> evaluation_group(const TokenRows& rows, std::int64_t begin, std::int64_t end,
                                         int num_microbatches, std::int64_t microbatch_size) {
  std::vector<Microbatch> group;
  std::int64_t next = begin;
  for (int m = 0; m < num_microbatches; ++m) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(microbatch_size), begin);
    std::int64_t num_real = 0;
    while (num_real < microbatch_size && next < end) indices[static_cast<std::size_t>(num_real++)] = next++;
    Microbatch& microbatch = group.emplace_back(make_microbatch(rows, indices));
    auto* targets = microbatch.targets.data_ptr<std::int64_t>();
    std::fill(targets + num_real * (rows.row_size - 1), targets + microbatch.targets.numel(), kIgnoredTarget);
  }
  return group;
}

}  // namespace plait
