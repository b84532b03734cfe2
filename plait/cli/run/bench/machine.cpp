#include "plait/cli/run/bench/machine.h"

#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <thread>

namespace plait::bench {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

nlohmann::ordered_json machine_facts() {
  return {{"version", PLAIT_VERSION},
          {"compiler", "g++ " __VERSION__},
          {"build_type", PLAIT_BUILD_TYPE},
          {"processor", processor_name()},
          {"cores", std::thread::hardware_concurrency()},
          {"transport", "threads"}};
}

Bytes peak_resident_bytes() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return Bytes{0};
  constexpr std::int64_t kUnit = 1024;  // of ru_maxrss on Linux
  return Bytes{static_cast<std::int64_t>(usage.ru_maxrss) * kUnit};
}

}  // namespace plait::bench
