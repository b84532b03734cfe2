#pragma once

#include "plait/run/model/config.h"
#include "plait/run/model/parameters.h"
#include "plait/run/model/stage_module.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace plait::test {

using TensorMap = std::map<std::string, at::Tensor>;

std::vector<int> all_parts(const ModelConfig& config);

/// Small shapes of each family, with everything that makes them differ.
ModelConfig tiny_config(ModelFamily family);

/// Copies the values into masters and compute.
void set_weights(ParameterSet& parameters, const TensorMap& weights);

/// Random values everywhere, norms and biases too, so that nothing is hidden by a zero or a one.
void randomize(ParameterSet& parameters, std::uint64_t seed);

/// Gradients by name, summed over uses, as copies.
TensorMap gradients(const ParameterSet& parameters);

/// Random [B,T] tokens with their successors as targets, the first target masked.
SliceData random_data(const ModelConfig& config, std::int64_t batch, std::int64_t tokens, std::uint64_t seed);

/// The number of valid targets.
std::int64_t valid_targets(const SliceData& data);

/// Stages that cut the chain at the given indices, all on one set of parameters.
struct PipelineResult {
  double loss = 0;
  at::Tensor logits;
};
enum class WeightGrads : std::uint8_t { kAtOnce, kAfterAll };
PipelineResult run_stages(const ModelConfig& config, ParameterSet& parameters, const std::vector<int>& cuts,
                          const SliceData& data, WeightGrads when = WeightGrads::kAtOnce);

/// The same with the sequence cut into slices of the given lengths: forward ascending, backward descending.
PipelineResult run_slices(const ModelConfig& config, ParameterSet& parameters, const std::vector<int>& cuts,
                          const SliceData& data, const std::vector<std::int64_t>& lengths);

/// Largest |a - b| over the largest |b|.
double relative_error(const at::Tensor& a, const at::Tensor& b);

/// Names of tensors that differ by more than `tolerance` of the largest value of all of `expected`, or are missing.
std::vector<std::string> differing(const TensorMap& result, const TensorMap& expected, double tolerance);

/// A folder that goes with the test.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// ../shared/fixtures/models/NAME; nothing if it is not there.
std::filesystem::path fixture(const std::string& name);

}  // namespace plait::test
