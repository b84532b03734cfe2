#include "plait/run/engine/step_data.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

namespace plait {
namespace {

template <class... Args>
Error bad_data(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kInvalidArgument, "engine.data", format, std::forward<Args>(args)...);
}

std::string shape(const at::Tensor& tensor) {
  return tensor.defined() ? fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")) : "none";
}

enum class Masking : std::uint8_t { kNo, kYes };

/// Checks ids and counts those that are not masked.
Result<std::int64_t> count_valid(const at::Tensor& ids, const char* name, std::size_t m, std::int64_t vocab_size,
                                 Masking masking) {
  const at::Tensor on_host = ids.cpu().contiguous();
  const auto* data = on_host.const_data_ptr<std::int64_t>();
  std::int64_t valid = 0;
  for (std::int64_t i = 0; i < on_host.numel(); ++i) {
    if (masking == Masking::kYes && data[i] == kIgnoredTarget) continue;
    if (data[i] < 0 || data[i] >= vocab_size)
      return bad_data("micro-batch {}: {} hold id {}; the vocabulary has {} entries", m, name, data[i], vocab_size);
    ++valid;
  }
  return valid;
}

Result<std::int64_t> check_microbatch(const Microbatch& microbatch, std::size_t m, const ModelConfig& config) {
  const at::Tensor& tokens = microbatch.tokens;
  const at::Tensor& targets = microbatch.targets;
  if (!tokens.defined() || !targets.defined() || tokens.dim() != 2 || tokens.sizes() != targets.sizes() ||
      tokens.numel() == 0)
    return bad_data("micro-batch {}: tokens {} and targets {}; both should be [rows, length] and not empty", m,
                    shape(tokens), shape(targets));
  if (tokens.scalar_type() != at::kLong || targets.scalar_type() != at::kLong)
    return bad_data("micro-batch {}: tokens are {} and targets {}; both should be int64", m,
                    c10::toString(tokens.scalar_type()), c10::toString(targets.scalar_type()));
  if (config.family == ModelFamily::kGpt2 && tokens.size(1) > config.max_positions)
    return bad_data("micro-batch {}: {} tokens in a row; the model has {} positions", m, tokens.size(1),
                    config.max_positions);
  PLAIT_TRY([[maybe_unused]] const std::int64_t num_tokens,
            count_valid(tokens, "tokens", m, config.vocab_size, Masking::kNo));
  return count_valid(targets, "targets", m, config.vocab_size, Masking::kYes);
}

Result<std::vector<std::int64_t>> lengths_of(std::int64_t tokens, std::size_t m, int num_slices,
                                             const std::vector<std::int64_t>& asked) {
  if (num_slices == 1) return std::vector<std::int64_t>{tokens};
  if (tokens < num_slices)
    return bad_data("micro-batch {}: {} tokens in a row cannot be cut into {} slices", m, tokens, num_slices);
  if (asked.empty()) {
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(num_slices), tokens / num_slices);
    for (std::int64_t q = 0; q < tokens % num_slices; ++q) ++lengths[static_cast<std::size_t>(q)];
    return lengths;
  }
  bool positive = true;
  for (const std::int64_t length : asked) positive &= length > 0;
  if (!positive || static_cast<int>(asked.size()) != num_slices ||
      std::accumulate(asked.begin(), asked.end(), std::int64_t{0}) != tokens)
    return bad_data("micro-batch {}: slice lengths {}; there should be {}, all positive, with the sum {}", m,
                    fmt::join(asked, ", "), num_slices, tokens);
  return asked;
}

/// Where the documents of a micro-batch lie, for rows that hold more than one.
std::vector<Document> documents_of(const at::Tensor& tokens, std::int64_t end) {
  const at::Tensor on_host = tokens.cpu().contiguous();
  const auto* ids = on_host.const_data_ptr<std::int64_t>();
  const std::int64_t length = tokens.size(1);
  std::vector<Document> documents;
  for (std::int64_t row = 0; row < tokens.size(0); ++row) {
    std::int64_t begin = 0;
    for (std::int64_t t = 0; t < length; ++t) {
      if (ids[row * length + t] != end && t + 1 < length) continue;
      documents.push_back(Document{.row = row, .begin = begin, .length = t + 1 - begin});
      begin = t + 1;
    }
  }
  if (static_cast<std::int64_t>(documents.size()) == tokens.size(0)) documents.clear();
  return documents;
}

/// The first token of a document is no target of the one before it.
Microbatch within_documents(const Microbatch& microbatch, std::int64_t end) {
  return Microbatch{.tokens = microbatch.tokens,
                    .targets = microbatch.targets.masked_fill(microbatch.tokens.eq(end), kIgnoredTarget)};
}

}  // namespace

Result<StepData> cut_microbatches(const std::vector<Microbatch>& microbatches, const Layout& layout,
                                  const ModelConfig& config, const EngineOptions& options) {
  if (options.document_end && layout.num_slices > 1)
    return bad_data(
        "packed documents in {} slices; use a schedule that does not cut sequences, or rows of one document",
        layout.num_slices);
  if (static_cast<int>(microbatches.size()) != layout.num_microbatches)
    return bad_data("{} micro-batches; the program takes {}", microbatches.size(), layout.num_microbatches);
  StepData data;
  data.slices.reserve(microbatches.size() * static_cast<std::size_t>(layout.num_slices));
  for (std::size_t m = 0; m < microbatches.size(); ++m) {
    PLAIT_TRY(std::int64_t valid, check_microbatch(microbatches[m], m, config));
    Microbatch microbatch = microbatches[m];
    std::vector<Document> documents;
    if (options.document_end) {
      microbatch = within_documents(microbatch, *options.document_end);
      documents = documents_of(microbatch.tokens, *options.document_end);
      PLAIT_TRY(valid, count_valid(microbatch.targets, "targets", m, config.vocab_size, Masking::kYes));
    }
    data.valid_tokens += valid;
    PLAIT_TRY(const auto lengths, lengths_of(microbatch.tokens.size(1), m, layout.num_slices, options.slice_lengths));
    std::int64_t begin = 0;
    for (const std::int64_t length : lengths) {
      const auto part = [&](const at::Tensor& whole) {
        return lengths.size() == 1 ? whole.contiguous() : whole.narrow(1, begin, length).contiguous();
      };
      data.slices.push_back(SliceData{.tokens = part(microbatch.tokens),
                                      .targets = part(microbatch.targets),
                                      .first_position = begin,
                                      .documents = documents});
      begin += length;
    }
  }
  if (data.valid_tokens == 0) return bad_data("all targets of the step are masked: there is nothing to learn from");
  for (SliceData& slice : data.slices) slice.loss_scale = 1.0 / static_cast<double>(data.valid_tokens);
  return data;
}

std::vector<SliceData> on_device(const std::vector<SliceData>& slices, at::Device device) {
  std::vector<at::Tensor> flat;
  for (const SliceData& slice : slices)
    for (const at::Tensor& ids : {slice.tokens, slice.targets}) flat.push_back(ids.reshape({-1}));
  const at::Tensor all = at::cat(flat).to(device, at::kLong, /*non_blocking=*/true);
  std::vector<SliceData> result = slices;
  std::int64_t begin = 0;
  for (SliceData& slice : result) {
    for (at::Tensor* ids : {&slice.tokens, &slice.targets}) {
      const std::int64_t count = ids->numel();
      *ids = all.narrow(0, begin, count).view(ids->sizes());
      begin += count;
    }
  }
  return result;
}

}  // namespace plait
