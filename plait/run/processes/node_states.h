#pragma once

#include "plait/run/engine/wait_state.h"
#include "plait/run/processes/node_memory.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plait {

/// Where the ranks of a process show how far they are, in memory that other processes of the machine map: these see it at
/// once, and to the last instruction even when the process is gone.
class NodeStates {
 public:
  NodeStates(int process, int num_processes);

  /// What others need to see them.
  [[nodiscard]] std::string card() const;
  /// Maps the states of those processes that are on this machine.
  void reach(const std::vector<std::string>& cards);
  /// Nobody maps this process's memory any more.
  void close();
  void lay_out(WaitTable& waits) const;

 private:
  struct Memory;
  int process_;
  std::uint64_t probe_ = 0;             ///< tells this job's memory from others' under the same number
  std::vector<SharedMemory> memories_;  ///< by process; without data where there is none
};

}  // namespace plait
