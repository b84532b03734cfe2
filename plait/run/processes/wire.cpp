#include "plait/run/processes/wire.h"

#include "plait/base/check.h"
#include "plait/run/engine/byte_stream.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>
#include <utility>

namespace plait {
namespace {

/// Bytes of a storage, relative to its begin.
struct Extent {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

Extent extent_of(const at::Tensor& tensor) {
  const auto width = static_cast<std::int64_t>(tensor.element_size());
  const std::int64_t first = tensor.storage_offset() * width;
  if (tensor.numel() == 0) return {.begin = first, .end = first};
  std::int64_t last = tensor.storage_offset();
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return {.begin = first, .end = (last + 1) * width};
}

/// What the message uses of one storage.
struct Use {
  const c10::StorageImpl* storage = nullptr;
  Extent extent;
  std::int64_t needed = 0;  ///< bytes of its tensors, each view counted
  std::vector<std::size_t> tensors;
};

/// In the order of the tensors, not of addresses. Storages are few: a search is faster than a map.
std::vector<Use> uses_of(const std::vector<at::Tensor>& tensors, c10::DeviceType where) {
  std::vector<Use> uses;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (!tensor.defined()) continue;
    PLAIT_CHECK(tensor.device().type() == where, "tensor {} is on {}", i, tensor.device().str());
    const Extent extent = extent_of(tensor);
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    auto at = std::find_if(uses.begin(), uses.end(), [&](const Use& use) { return use.storage == storage; });
    if (at == uses.end()) at = uses.insert(at, Use{.storage = storage, .extent = extent});
    Use& use = *at;
    use.extent = {.begin = std::min(use.extent.begin, extent.begin), .end = std::max(use.extent.end, extent.end)};
    use.needed += static_cast<std::int64_t>(tensor.nbytes());
    use.tensors.push_back(i);
  }
  return uses;
}

/// Views with wide gaps between them travel without the gaps, at the price of a copy. Whether there were any.
bool close_gaps(std::vector<at::Tensor>& tensors, const std::vector<Use>& uses) {
  bool any = false;
  for (const Use& use : uses) {
    const std::int64_t covered = use.extent.end - use.extent.begin;
    if (covered <= use.needed + use.needed / 4) continue;
    for (const std::size_t i : use.tensors) tensors[i] = at::clone(tensors[i], at::MemoryFormat::Contiguous);
    any = true;
  }
  return any;
}

constexpr std::int64_t kAlignment = 64;  // of the allocator: what is aligned here is aligned there

}  // namespace

WireMessage pack(Message&& message, c10::DeviceType where) {
  WireMessage wire;
  std::vector<std::int32_t> piece_of(message.tensors.size(), -1);
  std::vector<std::int64_t> begin_of(message.tensors.size(), 0);
  std::vector<std::uint64_t> sizes;
  std::vector<Use> uses = uses_of(message.tensors, where);
  if (close_gaps(message.tensors, uses)) uses = uses_of(message.tensors, where);
  for (const Use& use : uses) {
    const std::int64_t begin = use.extent.begin / kAlignment * kAlignment;
    for (const std::size_t user : use.tensors) {
      piece_of[user] = static_cast<std::int32_t>(wire.pieces.size());
      begin_of[user] = begin;
    }
    const auto size = static_cast<std::size_t>(use.extent.end - begin);
    const auto* base = static_cast<const char*>(message.tensors[use.tensors.front()].storage().data());
    wire.pieces.push_back({.data = base + begin, .size = size});
    sizes.push_back(size);
  }
  constexpr std::size_t kFixed = 64;      // bytes, about
  constexpr std::size_t kPerTensor = 96;  // of three dimensions
  ByteWriter out(kFixed + kPerTensor * message.tensors.size());
  out.put(message.value).put_list(message.counts).put_list(sizes).put(message.tensors.size());
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    const at::Tensor& tensor = message.tensors[i];
    out.put(piece_of[i]);
    if (!tensor.defined()) continue;
    const auto width = static_cast<std::int64_t>(tensor.element_size());
    out.put(tensor.scalar_type()).put(tensor.storage_offset() - begin_of[i] / width);
    out.put_list(std::span(tensor.sizes().data(), tensor.sizes().size()));
    out.put_list(std::span(tensor.strides().data(), tensor.strides().size()));
  }
  wire.head = out.take();
  wire.holders = std::move(message.tensors);
  return wire;
}

WireReceipt::WireReceipt(std::string_view head) {
  ByteReader in(head);
  value_ = in.get<Value>();
  counts_ = in.get_list<std::int32_t>();
  for (const std::uint64_t size : in.get_list<std::uint64_t>()) sizes_.push_back(size);
  forms_.resize(in.get<std::size_t>());
  for (TensorForm& form : forms_) {
    form.piece = in.get<std::int32_t>();
    if (form.piece < 0) continue;
    form.type = in.get<at::ScalarType>();
    form.offset = in.get<std::int64_t>();
    form.sizes = in.get_list<std::int64_t>();
    form.strides = in.get_list<std::int64_t>();
  }
  buffers_.resize(sizes_.size());
}

void WireReceipt::allocate(c10::Device device) {
  for (std::size_t i = 0; i < sizes_.size(); ++i)
    buffers_[i] =
        at::empty({static_cast<std::int64_t>(sizes_[i])}, at::TensorOptions().dtype(at::kByte).device(device));
}

void* WireReceipt::buffer(std::size_t piece) {
  return buffers_[piece].mutable_data_ptr();
}

Message WireReceipt::take() {
  Message message{.value = value_, .tensors = {}, .counts = std::move(counts_)};
  for (const TensorForm& form : forms_) {
    at::Tensor& tensor = message.tensors.emplace_back();
    if (form.piece < 0) continue;
    const at::Tensor& buffer = buffers_[static_cast<std::size_t>(form.piece)];
    tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(buffer.storage()), buffer.key_set(),
                                                      c10::scalarTypeToTypeMeta(form.type));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(form.sizes, form.strides, form.offset);
  }
  buffers_.clear();
  return message;
}

}  // namespace plait
