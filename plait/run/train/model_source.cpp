#include "plait/run/train/model_source.h"

#include "plait/run/hf/model_dir.h"

#include <utility>

namespace plait {
namespace {

namespace fs = std::filesystem;

Result<ModelSource> from_checkpoint(const fs::path& path) {
  PLAIT_TRY(Checkpoint checkpoint, read_checkpoint(path));
  for (auto& [name, state] : checkpoint.parameters) state.moments.clear();
  return ModelSource{.path = path,
                     .config = checkpoint.config,
                     .parameters = std::move(checkpoint.parameters),
                     .state = std::move(checkpoint.state)};
}

}  // namespace

Result<ModelSource> load_model(const fs::path& folder) {
  std::error_code ec;
  if (fs::exists(folder / "state.json", ec)) return from_checkpoint(folder);
  if (fs::exists(folder / "checkpoints", ec)) {
    const CheckpointSearch search = find_checkpoint(folder);
    if (!search.newest)
      return make_error(ErrorCode::kIo, "model.missing", "{}: this run has no complete checkpoint", folder.string());
    return from_checkpoint(*search.newest);
  }
  ModelSource source{.path = folder};
  PLAIT_TRY(source.config, read_model_config(folder));
  PLAIT_TRY(auto weights, read_model_weights(folder, source.config));
  for (auto& [name, tensor] : weights) source.parameters[name].master = std::move(tensor);
  PLAIT_TRY_VOID(check_finite(source.parameters, folder.string()));
  return source;
}

}  // namespace plait
