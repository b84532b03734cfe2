#pragma once

#include "plait/base/files.h"
#include "plait/base/result.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

/// One tensor in the header of a safetensors file.
struct SafetensorsEntry {
  std::string dtype;  ///< "F32"; one of the format's names
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< bytes behind the header
  std::uint64_t end = 0;
  friend bool operator==(const SafetensorsEntry&, const SafetensorsEntry&) = default;
};

/// A safetensors file whose header has been checked; tensors are read one by one.
///
///     PLAIT_TRY(const SafetensorsFile file, SafetensorsFile::open("model.safetensors"));
///     PLAIT_TRY(at::Tensor weight, file.read("model.norm.weight"));
///
/// \source the format's description, https://huggingface.co/docs/safetensors
class SafetensorsFile {
 public:
  /// \errors kIo "safetensors.*": missing, truncated, a header that is too long or no JSON, a name given twice, an unknown
  ///         dtype, a size that its shape does not have, tensors that overlap, leave holes or end elsewhere than the file
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  [[nodiscard]] const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// A tensor of F64, F32, F16 or BF16, in its own type.
  /// \errors kUnsupported "safetensors.dtype" for the other types; kIo "io.read"
  [[nodiscard]] Result<at::Tensor> read(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::uint64_t data_begin_ = 0;  ///< where the header ends
  std::map<std::string, SafetensorsEntry> entries_;
};

/// All tensors of a file. \errors as SafetensorsFile
Result<std::map<std::string, at::Tensor>> read_safetensors(const std::filesystem::path& path);

struct SafetensorsShape {
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape;
};
/// A file before any of its data is there.
struct SafetensorsPlan {
  std::string head;                              ///< its first bytes: length and header
  std::map<std::string, std::uint64_t> offsets;  ///< of each tensor's data, from the beginning of the file
  std::uint64_t bytes = 0;                       ///< of the whole file
};
/// In the order of the reference implementation: widest types first, then by name.
SafetensorsPlan plan_safetensors(const std::map<std::string, SafetensorsShape>& tensors);

/// Writes a file as the reference implementation does (widest types first, then by name), atomically.
/// \errors kIo "io.write"
Result<> write_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors);

/// The same into a file that is not committed yet, so that several can appear together.
Result<AtomicFile> stage_safetensors(const std::filesystem::path& path,
                                     const std::map<std::string, at::Tensor>& tensors);

}  // namespace plait
