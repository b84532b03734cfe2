#pragma once

#include "plait/run/processes/nccl_table.h"

#include <cstdint>
#include <memory>

/// In place of NCCL and GPUs, for what is built on them: members in any processes of one machine, over sockets, with tensors in
/// host memory. It keeps what is hard about NCCL: a queue does one thing after another and waits for the peer of each, a send
/// is over only when the other end has asked for it, calls of a communicator meet in order and must fit, opening takes all
/// members, and nothing ends by itself when a member dies.
///
/// Sums are taken in the order of the members, as plait's own are.
namespace plait::testing {

struct FakeNcclFaults {
  /// These happen on the process that is given them.
  enum class Kind : std::uint8_t {
    kNone,
    kNeverOpens,  ///< does not come to the opening of its last communicator
    kFails,       ///< a communicator fails behind `calls`
    kHangs,       ///< a queue comes to no end of its call behind `calls`
    kRefuses,     ///< a call behind `calls` is refused at once
    kDies,        ///< the process is killed behind `calls`
  } kind = Kind::kNone;
  int calls = 0;           ///< of all queues of the process together, openings left out
  bool one_gpu = false;    ///< all ranks of the machine share one
  int most_queues = 1000;  ///< per GPU
};

std::shared_ptr<Nccl> make_fake_nccl(const FakeNcclFaults& faults = {});

}  // namespace plait::testing
