#pragma once

#include "plait/base/result.h"

#include <span>
#include <string>
#include <string_view>

namespace plait {

/// A description that comes with the program: data/devices, data/clusters, data/models or data/calibrations.
struct NamedData {
  std::string_view kind;  ///< "device", "cluster", "model", "calibration"
  std::string_view name;  ///< "h100-80gb-sxm"
  std::string_view json;
};

/// All of them, by kind and name.
std::span<const NamedData> named_data();

/// The JSON text that NAME|FILE stands for: a name, an unambiguous beginning of one ("h100"), or a file.
///
/// \errors kInvalidArgument "KIND.unknown", with the names there are; kIo if the file cannot be read
Result<std::string> read_named(std::string_view kind, const std::string& name_or_file);

}  // namespace plait
