#pragma once

#include "plait/base/result.h"
#include "plait/run/engine/process_group.h"
#include "plait/run/engine/transport.h"

#include <cstdint>
#include <string>
#include <vector>

namespace plait {

/// What needs an order of its own, so that it waits for nothing else: the messages of one kind from one rank to another, which
/// meet in order (the verifier proves that), or the collectives that the same ranks enter in one order.
struct NcclLineSpec {
  enum class Kind : std::uint8_t { kMessages, kCollectives } kind = Kind::kMessages;
  std::vector<RankId> members;               ///< of messages: from whom, to whom; of collectives: ascending
  ValueKind value = ValueKind::kActivation;  ///< of messages
  std::int32_t order = 0;                    ///< of collectives: CollectiveRoute::order
  enum class Way : std::uint8_t { kDevices, kHosts } way = Way::kDevices;  ///< kHosts: members share a GPU
  friend bool operator==(const NcclLineSpec&, const NcclLineSpec&) = default;
};

/// "the activations from rank 0 to rank 1".
std::string describe(const NcclLineSpec& line);

/// Which transfer and which collective of a program goes by which line. Every process has the same plan; the order of its lines
/// is that in which all open them, so that nobody waits in a circle.
struct NcclPlan {
  std::vector<NcclLineSpec> lines;
  std::vector<std::int32_t> of_transfer;    ///< index into lines, kAbsent: it stays in its process
  std::vector<std::int32_t> of_collective;  ///< the same
  int most_blocks = 0;                      ///< of a GPU for each message: all lines of one may be busy at once

  /// What users should know: which ranks speak by way of the host since they share a GPU. Empty: none.
  std::string note;
  friend bool operator==(const NcclPlan&, const NcclPlan&) = default;
};

/// \param process_of   per rank
/// \param gpus         per rank: a name that no two GPUs of the job share
NcclPlan plan_nccl(const Routes& routes, const std::vector<int>& process_of, const std::vector<std::string>& gpus);

}  // namespace plait
