// NCCL itself, from the library that libtorch_cuda loads, or one that the system finds.

#include "plait/run/engine/rank_device.h"
#include "plait/run/processes/nccl_table.h"

#include <c10/core/DeviceGuard.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <nccl.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace plait {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(NcclId));

/// The functions that are called.
struct Functions {
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&::ncclCommGetAsyncError) async_error = nullptr;
  decltype(&::ncclCommFinalize) finalize = nullptr;
  decltype(&::ncclCommDestroy) destroy = nullptr;
  decltype(&::ncclCommAbort) abort = nullptr;
  decltype(&::ncclGetErrorString) error_string = nullptr;
  decltype(&::ncclGetLastError) last_error = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclReduce) reduce = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::cudaDeviceGetPCIBusId) bus_id = nullptr;
};

Error missing(const std::string& what) {
  return Error{
      .code = ErrorCode::kUnsupported,
      .rule = "nccl.missing",
      .message = fmt::format("NCCL does not load: {}; scripts/setup cuda fetches it, or leave --processes out: "
                             "one process uses all GPUs of a machine",
                             what)};
}

template <class Function>
Result<> find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return {};
  return missing(fmt::format("it has no {}", name));
}

Result<Functions> find_functions() {
  // What is not set is chosen here: connections that were made when first used would let a host wait for its peer then.
  ::setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
  void* nccl = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (nccl == nullptr) {
    const char* words = ::dlerror();
    return missing(words == nullptr ? "libnccl.so.2" : words);
  }
  Functions f;
  PLAIT_TRY_VOID(find(nccl, "ncclGetUniqueId", f.get_unique_id));
  PLAIT_TRY_VOID(find(nccl, "ncclCommInitRankConfig", f.init_rank));
  PLAIT_TRY_VOID(find(nccl, "ncclCommGetAsyncError", f.async_error));
  PLAIT_TRY_VOID(find(nccl, "ncclCommFinalize", f.finalize));
  PLAIT_TRY_VOID(find(nccl, "ncclCommDestroy", f.destroy));
  PLAIT_TRY_VOID(find(nccl, "ncclCommAbort", f.abort));
  PLAIT_TRY_VOID(find(nccl, "ncclGetErrorString", f.error_string));
  PLAIT_TRY_VOID(find(nccl, "ncclGetLastError", f.last_error));
  PLAIT_TRY_VOID(find(nccl, "ncclGroupStart", f.group_start));
  PLAIT_TRY_VOID(find(nccl, "ncclGroupEnd", f.group_end));
  PLAIT_TRY_VOID(find(nccl, "ncclSend", f.send));
  PLAIT_TRY_VOID(find(nccl, "ncclRecv", f.receive));
  PLAIT_TRY_VOID(find(nccl, "ncclAllReduce", f.all_reduce));
  PLAIT_TRY_VOID(find(nccl, "ncclReduce", f.reduce));
  PLAIT_TRY_VOID(find(nccl, "ncclReduceScatter", f.reduce_scatter));
  PLAIT_TRY_VOID(find(nccl, "ncclAllGather", f.all_gather));
  PLAIT_TRY_VOID(find(nccl, "ncclBroadcast", f.broadcast));
  // libtorch_cuda brought the runtime along.
  PLAIT_TRY_VOID(find(RTLD_DEFAULT, "cudaDeviceGetPCIBusId", f.bus_id));
  return f;
}

ncclDataType_t type_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
    case at::kBool: return ncclUint8;
    case at::kChar: return ncclInt8;
    case at::kInt: return ncclInt32;
    case at::kLong: return ncclInt64;
    case at::kHalf: return ncclFloat16;
    case at::kBFloat16: return ncclBfloat16;
    case at::kFloat: return ncclFloat32;
    case at::kDouble: return ncclFloat64;
    default: throw std::runtime_error(fmt::format("NCCL has no {}", c10::toString(type)));
  }
}

class LibraryCommunicator final : public NcclCommunicator {
 public:
  LibraryCommunicator(const Functions& functions, ncclComm_t handle) : f_(functions), handle_(handle) {}
  ~LibraryCommunicator() override { give_up(); }
  LibraryCommunicator(const LibraryCommunicator&) = delete;
  LibraryCommunicator& operator=(const LibraryCommunicator&) = delete;

  [[nodiscard]] NcclState state() override {
    ncclResult_t now = ncclSuccess;
    const ncclResult_t asked = f_.async_error(handle_, &now);
    if (asked != ncclSuccess) now = asked;
    if (now == ncclInProgress) return NcclState::kInProgress;
    if (now == ncclSuccess) return NcclState::kReady;
    failed_with_ = now;
    return NcclState::kFailed;
  }
  [[nodiscard]] std::string words() override {
    const char* more = f_.last_error(handle_);
    return fmt::format("{}{}{}", f_.error_string(failed_with_), more == nullptr || *more == '\0' ? "" : ": ",
                       more == nullptr ? "" : more);
  }

  void issue(std::span<const NcclCall> calls, DeviceQueue& queue) override {
    auto* stream = static_cast<cudaStream_t>(queue.native());
    check(f_.group_start(), "ncclGroupStart");
    ncclResult_t first = ncclSuccess;
    for (const NcclCall& call : calls) {
      const ncclResult_t result = issue_one(call, stream);
      if (first == ncclSuccess && result != ncclInProgress) first = result;
    }
    const ncclResult_t ended = f_.group_end();
    check(first, "a call");
    check(ended, "ncclGroupEnd");
  }

  void close() override {
    check(f_.finalize(handle_), "ncclCommFinalize");
    closes_ = true;
  }
  void abort() override {
    if (handle_ != nullptr) f_.abort(std::exchange(handle_, nullptr));
  }

 private:
  ncclResult_t issue_one(const NcclCall& call, cudaStream_t stream) {
    const ncclDataType_t type = type_of(call.type);
    switch (call.kind) {
      case NcclCall::Kind::kSend: return f_.send(call.from, call.count, type, call.peer, handle_, stream);
      case NcclCall::Kind::kReceive: return f_.receive(call.into, call.count, type, call.peer, handle_, stream);
      case NcclCall::Kind::kAllReduce:
        return f_.all_reduce(call.from, call.into, call.count, type, ncclSum, handle_, stream);
      case NcclCall::Kind::kReduce:
        return f_.reduce(call.from, call.into, call.count, type, ncclSum, call.peer, handle_, stream);
      case NcclCall::Kind::kReduceScatter:
        return f_.reduce_scatter(call.from, call.into, call.count, type, ncclSum, handle_, stream);
      case NcclCall::Kind::kAllGather: return f_.all_gather(call.from, call.into, call.count, type, handle_, stream);
      case NcclCall::Kind::kBroadcast:
        return f_.broadcast(call.from, call.into, call.count, type, call.peer, handle_, stream);
    }
    return ncclInvalidUsage;
  }

  void check(ncclResult_t result, const char* call) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    failed_with_ = result;
    throw std::runtime_error(fmt::format("{}: {}", call, words()));
  }

  void give_up() {
    if (handle_ == nullptr) return;
    if (closes_ && state() == NcclState::kReady)
      f_.destroy(std::exchange(handle_, nullptr));
    else
      abort();
  }

  const Functions& f_;
  ncclComm_t handle_;
  ncclResult_t failed_with_ = ncclSuccess;
  bool closes_ = false;
};

class Library final : public Nccl {
 public:
  explicit Library(const Functions& functions) : f_(functions) {}

  Result<NcclId> make_id() override {
    ncclUniqueId id;
    const ncclResult_t result = f_.get_unique_id(&id);
    if (result != ncclSuccess)
      return make_error(ErrorCode::kTransport, "nccl.open", "ncclGetUniqueId: {}", f_.error_string(result));
    NcclId bytes{};
    std::memcpy(bytes.data(), &id, sizeof(id));
    return bytes;
  }

  Result<std::vector<std::unique_ptr<NcclCommunicator>>> open(const NcclId& bytes, int size,
                                                              std::span<const NcclMember> here,
                                                              int most_blocks) override {
    ncclUniqueId id;
    std::memcpy(&id, bytes.data(), sizeof(id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (most_blocks > 0) config.maxCTAs = most_blocks;
    std::vector<ncclComm_t> handles(here.size(), nullptr);
    ncclResult_t first = f_.group_start();
    for (std::size_t i = 0; i < here.size() && first == ncclSuccess; ++i) {
      const c10::DeviceGuard guard(here[i].device);
      const ncclResult_t result = f_.init_rank(&handles[i], size, id, here[i].place, &config);
      if (result != ncclInProgress) first = result;
    }
    const ncclResult_t ended = f_.group_end();
    if (first == ncclSuccess && ended != ncclInProgress) first = ended;
    std::vector<std::unique_ptr<NcclCommunicator>> opened;
    for (ncclComm_t handle : handles)
      if (handle != nullptr) opened.push_back(std::make_unique<LibraryCommunicator>(f_, handle));
    if (first != ncclSuccess || opened.size() != here.size())
      return make_error(ErrorCode::kTransport, "nccl.open", "ncclCommInitRankConfig: {}: {}", f_.error_string(first),
                        f_.last_error(nullptr));
    return opened;
  }

  std::unique_ptr<DeviceQueue> make_queue(c10::Device device) override { return make_device_queue(device); }
  [[nodiscard]] int most_queues() const override { return kMostDeviceQueues; }

  Result<std::string> name_of(c10::Device device) override {
    std::array<char, 32> name{};  // domain:bus:device.function
    const cudaError_t result = f_.bus_id(name.data(), static_cast<int>(name.size()), device.index());
    if (result != cudaSuccess)
      return make_error(ErrorCode::kTransport, "nccl.open", "cudaDeviceGetPCIBusId of GPU {}: error {}",
                        static_cast<int>(device.index()), static_cast<int>(result));
    return std::string(name.data());
  }

 private:
  Functions f_;
};

}  // namespace

Result<> check_nccl_is_built_in() {
  return {};
}

Result<std::shared_ptr<Nccl>> load_nccl() {
  PLAIT_TRY_VOID(load_cuda());
  static const Result<Functions> kFunctions = find_functions();
  if (!kFunctions) return kFunctions.error();
  return std::shared_ptr<Nccl>(std::make_shared<Library>(*kFunctions));
}

}  // namespace plait
