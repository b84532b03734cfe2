#pragma once

#include "plait/run/engine/byte_stream.h"
#include "plait/run/engine/segments.h"
#include "plait/run/engine/transport.h"
#include "plait/run/processes/exchange_plan.h"
#include "plait/run/processes/mpi_requests.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

/// One collective with members on several processes, step after step. All calls while the world is held.
///
/// Each process announces its members' entries, with sizes and, where they are small, with the elements. When all have
/// entered, everyone either does the whole with the elements that came along, or the planned blocks go out: first the
/// summands to who sums, then the results.
class MpiExchange {
 public:
  struct Context {
    MpiWorld* world = nullptr;
    MpiRequests* requests = nullptr;
    MPI_Comm bytes = MPI_COMM_NULL;
    int process = 0;
  };
  /// \param tag        this and the next one are the collective's own
  /// \param processes  of the members
  MpiExchange(const CollectiveRoute& route, const Context& context, int tag, std::vector<int> processes);

  /// Other processes with members.
  [[nodiscard]] const std::vector<int>& others() const { return others_; }

  void begin_step();
  /// True when all members of this process have entered: then announce.
  bool enter(std::size_t member, std::span<const at::Tensor> tensors);
  [[nodiscard]] std::string announcement() const;
  void on_announcement(int process, std::string_view bytes);
  /// Starts the work if all have entered; `done` runs when this process's part of it is.
  void start_if_all_in(std::function<void()> done);

  [[nodiscard]] bool has_entered(std::size_t member) const { return entered_[member]; }
  [[nodiscard]] bool at_rest() const { return !under_way_; }

 private:
  [[nodiscard]] bool is_here(std::size_t member) const { return processes_[member] == context_.process; }
  [[nodiscard]] bool all_in() const;
  [[nodiscard]] at::Tensor segment(std::size_t member, const ExchangeBlock& block) const;
  [[nodiscard]] at::Tensor result_of(const ExchangeBlock& block) const;
  [[nodiscard]] bool is_copy() const;
  void do_inline();
  void send_summands();
  void sum();
  void send_results();
  void copy_results();
  void finish();
  void send(const at::Tensor& from, int process, int tag);
  void receive(const at::Tensor& into, int process, int tag);
  void one_is_through();
  void go_on();

  const CollectiveRoute& route_;
  Context context_;
  int tag_;
  std::vector<int> processes_;  ///< of the members
  std::vector<int> others_;
  std::size_t root_ = 0;

  std::vector<bool> entered_;
  MemberTensors tensors_;                    ///< of members that are here
  std::vector<MemberTensorList> announced_;  ///< of all
  std::vector<std::string> elements_;        ///< of members elsewhere, where they came along
  bool all_inline_ = true;
  bool under_way_ = false;
  std::function<void()> done_;

  enum class Phase : std::uint8_t { kSummands, kResults } phase_ = Phase::kSummands;
  int pending_ = 0;
  std::vector<ExchangeBlock> blocks_;
  std::vector<std::vector<at::Tensor>> summands_;  ///< per block, those from elsewhere in place
};

}  // namespace plait
