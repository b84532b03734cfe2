#include "plait/run/engine/process_group.h"

#include "plait/base/check.h"
#include "plait/run/engine/byte_stream.h"

#include <algorithm>

namespace plait {

RankRange ranks_of_process(int process, int num_processes, int num_ranks) {
  PLAIT_CHECK(process >= 0 && process < num_processes, "process {} of {}", process, num_processes);
  const int each = num_ranks / num_processes;
  const int more = num_ranks % num_processes;
  const int begin = process * each + std::min(process, more);
  return RankRange{.begin = begin, .end = begin + each + (process < more ? 1 : 0)};
}

int process_of_rank(RankId rank, int num_processes, int num_ranks) {
  for (int process = 0; process < num_processes; ++process)
    if (ranks_of_process(process, num_processes, num_ranks).contains(rank)) return process;
  PLAIT_CHECK(false, "rank {} of {}", rank.value(), num_ranks);
}

std::vector<bool> ranks_of(const std::vector<bool>& processes, int num_ranks) {
  std::vector<bool> ranks(static_cast<std::size_t>(num_ranks));
  for (std::int32_t rank = 0; rank < num_ranks; ++rank)
    ranks[static_cast<std::size_t>(rank)] = processes[static_cast<std::size_t>(
        process_of_rank(RankId{rank}, static_cast<int>(processes.size()), num_ranks))];
  return ranks;
}

std::string encode(const Error& error) {
  return ByteWriter().put(error.code).put_bytes(error.rule).put_bytes(error.message).take();
}

Error decode_error(std::string_view bytes) {
  ByteReader in(bytes);
  Error error{.code = in.get<ErrorCode>(), .rule = {}, .message = {}};
  error.rule = in.get_bytes();
  error.message = in.get_bytes();
  return error;
}

}  // namespace plait
