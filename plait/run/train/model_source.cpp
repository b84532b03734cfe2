#include "plait/run/train/model_source.h"

#include "plait/run/hf/model_dir.h"

#include <utility>

namespace plait {
namespace {

namespace fs = std::filesystem;

ModelSource from_checkpoint(const fs::path& path, Checkpoint checkpoint) {
  for (auto& [name, state] : checkpoint.parameters) state.moments.clear();
  return ModelSource{.path = path,
                     .config = checkpoint.config,
                     .parameters = std::move(checkpoint.parameters),
                     .state = std::move(checkpoint.state)};
}

}  // namespace

Result<ModelSource> load_model(const fs::path& folder) {
  std::error_code ec;
  if (fs::exists(folder / "state.json", ec)) {
    PLAIT_TRY(Checkpoint checkpoint, read_checkpoint(folder));
    return from_checkpoint(folder, std::move(checkpoint));
  }
  if (fs::exists(folder / "checkpoints", ec)) {
    PLAIT_TRY(FoundCheckpoint found, read_newest_checkpoint(folder));
    if (!found.checkpoint)
      return make_error(ErrorCode::kIo, "model.missing", "{}: this run has no checkpoint", folder.string());
    ModelSource source = from_checkpoint(found.path, *std::move(found.checkpoint));
    source.note = std::move(found.note);
    return source;
  }
  ModelSource source{.path = folder};
  PLAIT_TRY(source.config, read_model_config(folder));
  PLAIT_TRY(auto weights, read_model_weights(folder, source.config));
  for (auto& [name, tensor] : weights) source.parameters[name].master = std::move(tensor);
  PLAIT_TRY_VOID(check_finite(source.parameters, folder.string()));
  return source;
}

}  // namespace plait
