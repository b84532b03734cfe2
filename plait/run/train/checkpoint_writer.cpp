#include "plait/run/train/checkpoint_writer.h"

#include "plait/base/check.h"
#include "plait/base/files.h"
#include "plait/run/engine/byte_stream.h"
#include "plait/run/hf/model_dir.h"
#include "plait/run/hf/safetensors.h"
#include "plait/run/train/agreement.h"
#include "plait/run/train/checkpoint_files.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

namespace plait {
namespace {

namespace fs = std::filesystem;

/// Name of a moment in the file.
std::string moment_name(const std::string& parameter, const std::string& moment) {
  return parameter + "." + moment;
}

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

CheckpointWriter::CheckpointWriter(Target target) : target_(std::move(target)) {}

CheckpointWriter::~CheckpointWriter() {
  abandon();
}

bool CheckpointWriter::leads() const {
  return target_.processes == nullptr || target_.processes->index() == 0;
}

Error CheckpointWriter::failed(const Error& error) const {
  if (error.rule == "checkpoint.not_finite" || error.code != ErrorCode::kIo) return error;
  return make_error(ErrorCode::kIo, "checkpoint.write", "the checkpoint of step {} could not be written: {}", *step_,
                    error.message);
}

/// Every process knows the whole layout of the files without being told.
void CheckpointWriter::plan(const RunState& state) {
  std::map<std::string, SafetensorsShape> weights;
  std::map<std::string, SafetensorsShape> moments;
  for (const ParameterSpec& spec : parameter_specs(target_.config)) {
    weights[spec.name] = {.type = target_.type, .shape = spec.shape};
    if (state.optimizer != "adamw") continue;
    for (const char* moment : {"exp_avg", "exp_avg_sq"})
      moments[moment_name(spec.name, moment)] = {.type = target_.type, .shape = spec.shape};
  }
  files_.clear();
  for (const auto& [name, tensors] : {std::pair(kModelFile, weights), std::pair(kOptimizerFile, moments)}) {
    SafetensorsPlan plan = plan_safetensors(tensors);
    files_.push_back({.name = std::string(name),
                      .head = std::move(plan.head),
                      .offsets = std::move(plan.offsets),
                      .bytes = plan.bytes});
  }
}

/// The folder, its small files, and the large ones empty in their sizes.
Result<> CheckpointWriter::make_files(const RunState& state) {
  std::error_code ec;
  fs::remove_all(temporary_, ec);
  PLAIT_TRY_VOID(make_folder(temporary_));
  for (const File& file : files_) PLAIT_TRY_VOID(make_file(temporary_ / file.name, file.bytes));
  PLAIT_TRY_VOID(write_file(temporary_ / "config.json", model_dir_config(target_.config, target_.type)));
  if (target_.options.sentencepiece) {
    PLAIT_TRY(const std::string model, read_file(*target_.options.sentencepiece));
    PLAIT_TRY_VOID(write_file(temporary_ / "tokenizer.model", model));
  }
  return write_file(temporary_ / kStateFile, run_state_json(state));
}

Result<> CheckpointWriter::begin(const RunState& state) {
  PLAIT_CHECK(!is_busy(), "a checkpoint is begun while another is written");
  step_ = state.step;
  temporary_ = target_.run / "checkpoints" / (std::string(kTemporaryPrefix) + step_name(state.step));
  plan(state);
  Result<> made = together(target_.processes, leads() ? make_files(state) : Result<>());
  if (!made) {
    const Error error = failed(made.error());
    abandon();
    return error;
  }
  segments_.clear();
  error_.reset();
  written_.store(false, std::memory_order_relaxed);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "plait-writer");
    try {
      if (const Result<> done = write_share(); !done) error_ = done.error();
    } catch (const std::exception& error) {
      error_ = Error{.code = ErrorCode::kIo, .rule = "io.write", .message = error.what()};
    }
    written_.store(true, std::memory_order_release);
  });
  return {};
}

Result<> CheckpointWriter::write_share() {
  for (std::uint32_t at = 0; at < files_.size(); ++at) {
    const File& file = files_[at];
    PLAIT_TRY(const SharedFile out, SharedFile::open(temporary_ / file.name));
    const auto put = [&](std::string_view bytes, std::uint64_t begin) -> Result<> {
      PLAIT_TRY_VOID(out.write(bytes, begin));
      segments_.push_back({.file = at, .begin = begin, .bytes = bytes.size(), .crc = crc64(bytes)});
      return {};
    };
    if (leads()) PLAIT_TRY_VOID(put(file.head, 0));
    for (const std::vector<HeldPart>& share : shares_) {
      for (const HeldPart& held : share) {
        if (held.what.empty() != (file.name == kModelFile)) continue;
        const std::string name = held.what.empty() ? held.name : moment_name(held.name, held.what);
        PLAIT_TRY_VOID(check_finite(held.part, name, fmt::format("step {}", *step_)));
        const auto begin = static_cast<std::uint64_t>(held.begin * held.part.element_size());
        PLAIT_TRY_VOID(put(bytes_of(held.part), file.offsets.at(name) + begin));
      }
    }
    PLAIT_TRY_VOID(out.sync());
  }
  return {};
}

/// The checksum of each file is that of its pieces, joined; they must fill it.
Result<> CheckpointWriter::seal(std::vector<Segment> segments) {
  std::sort(segments.begin(), segments.end(),
            [](const Segment& a, const Segment& b) { return std::pair(a.file, a.begin) < std::pair(b.file, b.begin); });
  std::vector<ManifestEntry> entries;
  auto next = segments.begin();
  for (std::uint32_t at = 0; at < files_.size(); ++at) {
    FileDigest digest;
    for (; next != segments.end() && next->file == at; ++next) {
      PLAIT_CHECK(next->begin == digest.bytes, "{}: a piece begins at byte {}, the one before ends at {}",
                  files_[at].name, next->begin, digest.bytes);
      digest.crc = crc64_joined(digest.crc, next->crc, next->bytes);
      digest.bytes += next->bytes;
    }
    PLAIT_CHECK(digest.bytes == files_[at].bytes, "{}: {} of {} bytes were written", files_[at].name, digest.bytes,
                files_[at].bytes);
    entries.push_back({.name = files_[at].name, .digest = digest});
  }
  for (const char* small : {"config.json", "state.json", "tokenizer.model"}) {
    std::error_code ec;
    if (!fs::exists(temporary_ / small, ec)) continue;
    PLAIT_TRY(const FileDigest digest, digest_file(temporary_ / small));
    entries.push_back({.name = small, .digest = digest});
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  PLAIT_TRY_VOID(write_file(temporary_ / kManifestFile, manifest_text(entries)));
  PLAIT_TRY_VOID(sync_path(temporary_));
  const fs::path final_path = temporary_.parent_path() / step_name(*step_);
  std::error_code ec;
  if (fs::exists(final_path, ec)) remove_checkpoint(final_path);
  fs::rename(temporary_, final_path, ec);
  if (ec)
    return make_error(ErrorCode::kIo, "io.write", "{}: the finished checkpoint could not be renamed: {}",
                      final_path.string(), ec.message());
  PLAIT_TRY_VOID(sync_path(final_path.parent_path()));
  prune_checkpoints(target_.run, *step_, target_.options.keep);
  return {};
}

Result<fs::path> CheckpointWriter::finish() {
  PLAIT_CHECK(is_busy(), "there is no checkpoint to finish");
  thread_.join();
  const auto end = [&]() -> Result<> {
    PLAIT_TRY_VOID(together(target_.processes, error_ ? Result<>(*error_) : Result<>()));
    std::vector<Segment> segments = segments_;
    if (target_.processes != nullptr) {
      PLAIT_TRY(const std::vector<std::string> all, target_.processes->gather(ByteWriter().put_list(segments_).take()));
      segments.clear();
      for (const std::string& bytes : all)
        for (const Segment& segment : ByteReader(bytes).get_list<Segment>()) segments.push_back(segment);
    }
    return together(target_.processes, leads() ? seal(std::move(segments)) : Result<>());
  };
  if (const Result<> ended = end(); !ended) {
    const Error error = failed(ended.error());
    abandon();
    return error;
  }
  const fs::path path = temporary_.parent_path() / step_name(*step_);
  step_.reset();
  return path;
}

void CheckpointWriter::abandon() {
  if (!is_busy()) return;
  if (thread_.joinable()) thread_.join();
  step_.reset();
  if (!leads()) return;
  std::error_code ec;
  fs::remove_all(temporary_, ec);
  fs::remove(temporary_.parent_path(), ec);  // only if it is empty
}

Result<fs::path> write_checkpoint(const fs::path& run, const Checkpoint& checkpoint, const CheckpointOptions& options) {
  PLAIT_CHECK(!checkpoint.parameters.empty(), "a checkpoint without parameters");
  CheckpointWriter writer({.run = run,
                           .config = checkpoint.config,
                           .type = checkpoint.parameters.begin()->second.master.scalar_type(),
                           .options = options});
  std::vector<HeldPart>& share = writer.shares().emplace_back();
  for (const auto& [name, state] : checkpoint.parameters) {
    const auto add = [&, &owner = name](const std::string& what, const at::Tensor& tensor) {
      share.push_back(
          {.name = owner, .what = what, .shape = tensor.sizes().vec(), .begin = 0, .part = tensor.contiguous()});
    };
    add("", state.master);
    for (const auto& [moment, tensor] : state.moments) add(moment, tensor);
  }
  PLAIT_TRY_VOID(writer.begin(checkpoint.state));
  return writer.finish();
}

}  // namespace plait
