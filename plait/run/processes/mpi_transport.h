#pragma once

#include "plait/run/engine/process_group.h"
#include "plait/run/engine/transport.h"
#include "plait/run/processes/mpi_world.h"
#include "plait/run/processes/node_lane.h"

#include <memory>
#include <vector>

namespace plait {

/// Two communicators of one program: what is announced, and the bytes. No other program's messages come by them.
struct MpiChannels {
  MPI_Comm heads = MPI_COMM_NULL;
  MPI_Comm bytes = MPI_COMM_NULL;
};

/// Channels over MPI for one program, of which this process runs the ranks `here`. What stays among these goes from hand
/// to hand (make_in_process_transport), what the lane carries goes by the lane.
///
/// A message is announced by a small head that says what it is (transfer, step, value, shapes); small ones ride along with
/// it. The bytes follow once the receive is posted, straight from the sender's storages into fresh ones of the
/// destination. A send is through when its bytes have left. A collective begins when all members have entered, and is done
/// by the processes in the background; sums have the order of the members.
///
/// \param lane  null: all processes are told apart by MPI alone
/// \errors  calls throw std::runtime_error where MPI fails
std::unique_ptr<Transport> make_mpi_transport(MpiWorld& world, const MpiChannels& channels, Routes routes,
                                              RankRange here, std::vector<int> process_of_rank,
                                              std::unique_ptr<NodeLane> lane);

}  // namespace plait
