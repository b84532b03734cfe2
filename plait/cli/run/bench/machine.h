#pragma once

#include "plait/base/ids.h"

#include <nlohmann/json.hpp>

#include <string>

namespace plait::bench {

/// "AMD EPYC ..."
std::string processor_name();
/// What a row of measurements stands on: version, compiler, processor, cores.
nlohmann::ordered_json machine_facts();
/// The most memory that the process had resident so far. Zero where the system does not say.
Bytes peak_resident_bytes();

}  // namespace plait::bench
