#pragma once

#include "plait/run/engine/transport.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

/// Bytes that go over the wire as they lie in memory.
struct WirePiece {
  const void* data = nullptr;
  std::size_t size = 0;
};

/// A message taken apart: a head that says how to put it together again, and the bytes of its storages. Tensors keep
/// sizes and strides, and views of one storage remain views of one, so that kernels find the same memory layout and give
/// the same bits.
struct WireMessage {
  std::string head;
  std::vector<WirePiece> pieces;    ///< one per storage
  std::vector<at::Tensor> holders;  ///< keep the pieces alive
  [[nodiscard]] std::size_t payload() const {
    std::size_t sum = 0;
    for (const WirePiece& piece : pieces) sum += piece.size;
    return sum;
  }
};

/// \param where  the tensors lie
/// \threads  the message's tensors are the caller's
/// \errors   throws InternalError for tensors that lie elsewhere
WireMessage pack(Message&& message, c10::DeviceType where = c10::DeviceType::CPU);

/// The other end: buffers come from the allocator, to be filled by whoever receives, then the message is whole.
class WireReceipt {
 public:
  explicit WireReceipt(std::string_view head);
  [[nodiscard]] std::size_t num_pieces() const { return buffers_.size(); }
  [[nodiscard]] std::size_t size_of(std::size_t piece) const { return sizes_[piece]; }
  /// Makes the buffers; charged to the account in scope.
  void allocate(c10::Device device = c10::Device(c10::DeviceType::CPU));
  [[nodiscard]] void* buffer(std::size_t piece);
  /// As bytes.
  [[nodiscard]] const at::Tensor& buffer_tensor(std::size_t piece) const { return buffers_[piece]; }
  Message take();

 private:
  struct TensorForm {
    std::int32_t piece = -1;  ///< none: undefined
    at::ScalarType type = at::kFloat;
    std::int64_t offset = 0;  ///< in elements
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
  };
  Value value_;
  std::vector<std::int32_t> counts_;
  std::vector<std::size_t> sizes_;
  std::vector<TensorForm> forms_;
  std::vector<at::Tensor> buffers_;  ///< per piece, bytes
};

}  // namespace plait
