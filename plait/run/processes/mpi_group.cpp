#include "plait/run/processes/mpi_group.h"

#include "plait/base/check.h"
#include "plait/run/engine/byte_stream.h"
#include "plait/run/processes/mpi_requests.h"
#include "plait/run/processes/mpi_transport.h"
#include "plait/run/processes/mpi_world.h"
#include "plait/run/processes/node_memory.h"
#include "plait/run/processes/node_states.h"
#include "plait/run/processes/watch.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace plait {
namespace {

/// Others may write checkpoints or evaluate meanwhile, and their signs of life go on: not only a silent step.
constexpr int kPatience = 30;  // timeouts

class MpiGroup final : public JobProcesses, public MpiUser {
 public:
  MpiGroup(Clock::duration timeout, OnOneMachine on_one_machine)
      : timeout_(timeout), on_one_machine_(on_one_machine), watch_(world_.index(), world_.size(), timeout) {
    world_.on_failure([this](const std::string& words) {
      watch_.report(Error{.code = ErrorCode::kTransport, .rule = "mpi.failed", .message = words});
    });
    world_.add(*this);
  }
  ~MpiGroup() override {
    world_.stop_polling();
    world_.remove(*this);
  }
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  Result<> start_watch() {
    PLAIT_TRY_VOID(duplicate(control_));
    PLAIT_TRY(std::string address, watch_.listen());
    PLAIT_TRY(const std::vector<std::string> addresses, exchange(std::move(address)));
    PLAIT_TRY_VOID(watch_.connect(addresses));
    PLAIT_TRY_VOID(watch_.start());
    if (on_one_machine_ != OnOneMachine::kSharedMemory || size() == 1) return {};
    states_.emplace(index(), size());
    PLAIT_TRY(const std::vector<std::string> cards, exchange(states_->card()));
    states_->reach(cards);
    PLAIT_TRY_VOID(meet());
    states_->close();
    return {};
  }

  [[nodiscard]] int index() const override { return world_.index(); }
  [[nodiscard]] int size() const override { return world_.size(); }

  Result<std::unique_ptr<Transport>> open(Routes routes, RankRange here) override {
    MpiChannels channels;
    PLAIT_TRY_VOID(duplicate(channels.heads));
    PLAIT_TRY_VOID(duplicate(channels.bytes));
    std::vector<int> processes;
    for (int rank = 0; rank < routes.num_ranks; ++rank)
      processes.push_back(process_of_rank(RankId{rank}, size(), routes.num_ranks));
    std::unique_ptr<NodeLane> lane;
    if (on_one_machine_ == OnOneMachine::kSharedMemory && size() > 1) {
      PLAIT_TRY(lane, open_lane(routes, here, processes));
    }
    return make_mpi_transport(world_, channels, std::move(routes), here, std::move(processes), std::move(lane));
  }

  Result<> meet() override {
    return finish("meeting the other processes", [&](const MpiRequests::Behind& behind) {
      MPI_Request request = MPI_REQUEST_NULL;
      check_mpi(MPI_Ibarrier(control_, &request), "MPI_Ibarrier");
      requests_.add(request, behind);
      return 1;
    });
  }

  Result<std::string> broadcast(std::string bytes) override {
    auto size = std::make_shared<std::uint64_t>(bytes.size());
    PLAIT_TRY_VOID(finish("learning a size from process 0", [&](const MpiRequests::Behind& behind) {
      MPI_Request request = MPI_REQUEST_NULL;
      check_mpi(MPI_Ibcast(size.get(), 1, MPI_UINT64_T, 0, control_, &request), "MPI_Ibcast");
      requests_.add(request, [size, behind] { behind(); });
      return 1;
    }));
    auto text = std::make_shared<std::string>(std::move(bytes));
    text->resize(*size);
    PLAIT_TRY_VOID(finish("learning from process 0", [&](const MpiRequests::Behind& behind) {
      const auto kept = [text, behind] { behind(); };
      if (index() != 0) return requests_.receive(text->data(), text->size(), 0, kTag, control_, kept);
      int pieces = 0;
      for (int process = 1; process < this->size(); ++process)
        pieces += requests_.send(text->data(), text->size(), process, kTag, control_, kept);
      return pieces;
    }));
    return std::move(*text);
  }

  Result<std::vector<std::string>> gather(std::string bytes) override {
    auto sizes = std::make_shared<std::vector<std::uint64_t>>(static_cast<std::size_t>(size()));
    auto own = std::make_shared<std::string>(std::move(bytes));
    auto own_size = std::make_shared<std::uint64_t>(own->size());
    PLAIT_TRY_VOID(finish("gathering sizes", [&](const MpiRequests::Behind& behind) {
      MPI_Request request = MPI_REQUEST_NULL;
      check_mpi(MPI_Igather(own_size.get(), 1, MPI_UINT64_T, sizes->data(), 1, MPI_UINT64_T, 0, control_, &request),
                "MPI_Igather");
      requests_.add(request, [sizes, own_size, behind] { behind(); });
      return 1;
    }));
    auto all = std::make_shared<std::vector<std::string>>(index() == 0 ? sizes->size() : 0);
    PLAIT_TRY_VOID(finish("gathering", [&](const MpiRequests::Behind& behind) {
      if (index() != 0) return requests_.send(own->data(), own->size(), 0, kTag, control_, [own, behind] { behind(); });
      int pieces = 0;
      for (std::size_t process = 1; process < all->size(); ++process) {
        std::string& text = (*all)[process];
        text.resize((*sizes)[process]);
        pieces += requests_.receive(text.data(), text.size(), static_cast<int>(process), kTag, control_,
                                    [all, behind] { behind(); });
      }
      return pieces;
    }));
    if (index() == 0) all->front() = std::move(*own);
    return std::move(*all);
  }

  Result<bool> any(bool mine) override {
    struct Votes {
      int mine = 0;
      int most = 0;
    };
    auto votes = std::make_shared<Votes>(Votes{.mine = mine ? 1 : 0});
    PLAIT_TRY_VOID(finish("agreeing", [&](const MpiRequests::Behind& behind) {
      MPI_Request request = MPI_REQUEST_NULL;
      check_mpi(MPI_Iallreduce(&votes->mine, &votes->most, 1, MPI_INT, MPI_MAX, control_, &request), "MPI_Iallreduce");
      requests_.add(request, [votes, behind] { behind(); });
      return 1;
    }));
    return votes->most > 0;
  }

  Result<std::shared_ptr<std::byte>> share(std::size_t size) override {
    // Behind the memory stands a number: another machine may have a process with that file too.
    struct Card {
      SharedMemory::Address address;
      std::uint64_t probe = 0;
    };
    const std::size_t whole = size + sizeof(Card::probe);
    std::optional<SharedMemory> memory;
    Card card{.address = {}, .probe = std::random_device()()};
    if (index() == 0) memory = SharedMemory::make(whole);
    if (memory) {
      card.address = memory->address();
      std::memcpy(memory->data() + size, &card.probe, sizeof(card.probe));
    }
    PLAIT_TRY(const std::string told, broadcast(ByteWriter().put(card).take()));
    card = ByteReader(told).get<Card>();
    if (index() != 0 && card.address.file >= 0 && card.address.size == whole) memory = SharedMemory::map(card.address);
    PLAIT_TRY(const bool is_missing,
              any(!memory || std::memcmp(memory->data() + size, &card.probe, sizeof(card.probe)) != 0));
    if (is_missing)
      return make_error(
          ErrorCode::kUnsupported, "processes.share",
          "the processes have no memory in common, so links between them cannot be emulated; start all on "
          "one machine that lets processes of one user share memory, or leave emulated links out");
    memory->close_file();
    auto kept = std::make_shared<SharedMemory>(std::move(*memory));
    return std::shared_ptr<std::byte>(kept, kept->data());
  }

  void lay_out(WaitTable& waits) override {
    if (states_) states_->lay_out(waits);
  }
  std::vector<bool> hear_all() override { return watch_.hear_all(); }
  void give_up(int process) override { watch_.give_up(process); }
  void show(std::shared_ptr<RankBoard> board) override { watch_.show(std::move(board)); }
  void hide() override { watch_.hide(); }
  void report(const Error& error) override { watch_.report(error); }
  [[nodiscard]] std::optional<Error> failure() const override { return watch_.failure(); }

  void on_failure(std::function<void(const Error&)> say, std::function<void(const Error&)> end) override {
    watch_.set_handlers({.say = std::move(say), .end = std::move(end)});
  }

  void with_mpi(const std::function<void()>& calls) override {
    const auto lock = world_.hold();
    calls();
  }

  Result<> leave() override {
    PLAIT_TRY_VOID(meet());
    watch_.leave();
    world_.stop_polling();
    // A peer that dies right now would keep MPI waiting.
    ::alarm(static_cast<unsigned>(std::chrono::ceil<std::chrono::seconds>(timeout_).count()));
    check_mpi(MPI_Finalize(), "MPI_Finalize");
    ::alarm(0);
    return {};
  }

  void leave_failed() override {
    watch_.set_handlers({});
    constexpr std::chrono::milliseconds kForOthers{700};  // longer than they take to their last words
    std::this_thread::sleep_for(kForOthers);
  }

  bool progress() override { return requests_.progress(); }
  [[nodiscard]] bool expects() const override { return false; }  // whoever calls the group waits for it

 private:
  static constexpr int kTag = 1;

  /// Posts some requests and waits until all are through. What they use must live behind a failure too, since nobody takes
  /// them back: it belongs to what stands behind each.
  template <class Post>
  Result<> finish(const char* what, const Post& post) {
    auto left = std::make_shared<int>(0);
    try {
      {
        const auto lock = world_.hold();
        *left += post([left] { --*left; });
      }
      const bool through = world_.wait([&] { return *left == 0; }, [&] { return watch_.failure().has_value(); },
                                       Clock::now() + kPatience * timeout_);
      if (through) return {};
    } catch (const InternalError&) {
      throw;
    } catch (const std::exception& error) {
      return make_error(ErrorCode::kTransport, "mpi.failed", "process {}, {}: {}", index(), what, error.what());
    }
    if (const auto failure = watch_.failure()) return *failure;
    return make_error(ErrorCode::kTimeout, "mpi.patience",
                      "process {}, {}: others did not come within {:.0f} s, though all give signs of life", index(),
                      what, std::chrono::duration<double>(kPatience * timeout_).count());
  }

  /// What everyone says, on all.
  Result<std::vector<std::string>> exchange(std::string bytes) {
    PLAIT_TRY(const std::vector<std::string> all, gather(std::move(bytes)));
    ByteWriter out;
    for (const std::string& one : all) out.put_bytes(one);
    PLAIT_TRY(const std::string told, broadcast(out.take()));
    ByteReader in(told);
    std::vector<std::string> parts;
    while (!in.done()) parts.emplace_back(in.get_bytes());
    return parts;
  }

  Result<std::unique_ptr<NodeLane>> open_lane(const Routes& routes, RankRange here, const std::vector<int>& processes) {
    auto lane = std::make_unique<NodeLane>(routes, here, processes, index());
    PLAIT_TRY(const std::vector<std::string> cards, exchange(lane->card()));
    std::vector<std::uint8_t> in_reach = lane->try_reach(cards);
    PLAIT_TRY(const std::vector<std::string> of_all, exchange(std::string(in_reach.begin(), in_reach.end())));
    const auto me = static_cast<std::size_t>(index());
    for (std::size_t process = 0; process < in_reach.size(); ++process)
      if (of_all[process][me] == '\0') in_reach[process] = 0;
    lane->use(in_reach);
    return lane;
  }

  Result<> duplicate(MPI_Comm& channel) {
    // The handle's place must outlive a failure.
    auto made = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
    PLAIT_TRY_VOID(finish("opening a channel", [&](const MpiRequests::Behind& behind) {
      MPI_Request request = MPI_REQUEST_NULL;
      check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, made.get(), &request), "MPI_Comm_idup");
      requests_.add(request, [made, behind] { behind(); });
      return 1;
    }));
    channel = *made;
    const auto lock = world_.hold();
    MPI_Comm_set_errhandler(channel, MPI_ERRORS_RETURN);
    return {};
  }

  Clock::duration timeout_;
  OnOneMachine on_one_machine_;
  MpiWorld world_;
  std::optional<NodeStates> states_;
  Watch watch_;
  MPI_Comm control_ = MPI_COMM_NULL;
  MpiRequests requests_;
};

}  // namespace

Result<> check_mpi_is_built_in() {
  return {};
}

Result<std::shared_ptr<JobProcesses>> join_job(const JoinOptions& options) {
  // When mpirun or the node's daemon is killed, nothing else would end this process.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  PLAIT_TRY_VOID(MpiWorld::start());
  auto group = std::make_shared<MpiGroup>(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.timeout_seconds)),
      options.on_one_machine);
  PLAIT_TRY_VOID(group->start_watch());
  return std::shared_ptr<JobProcesses>(std::move(group));
}

}  // namespace plait
