#include "plait/run/engine/messages.h"

#include "plait/run/engine/describe.h"

#include <ATen/ops/clone.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace plait {
namespace {

/// Does the message hold every reference to the storage of tensor `at`?
bool holds_alone(const std::vector<at::Tensor>& tensors, std::size_t at) {
  const at::Tensor& tensor = tensors[at];
  if (tensor.use_count() == 1 && tensor.storage().use_count() == 1) return true;
  // Several tensors of the message may share it: each counts once per distinct handle.
  std::size_t views = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || !tensors[i].is_alias_of(tensor)) continue;
    std::size_t handles = 0;
    bool is_first = true;
    for (std::size_t j = 0; j < tensors.size(); ++j) {
      if (!tensors[j].is_same(tensors[i])) continue;
      ++handles;
      is_first &= j >= i;
    }
    if (tensors[i].use_count() != handles) return false;
    if (is_first) ++views;
  }
  return tensor.storage().use_count() == views;
}

std::vector<bool> held_alone(const std::vector<at::Tensor>& tensors) {
  std::vector<bool> alone(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) alone[i] = !tensors[i].defined() || holds_alone(tensors, i);
  return alone;
}

std::string describe_one(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

}  // namespace

Message flatten(Value value, std::vector<std::vector<at::Tensor>>&& parts) {
  Message message{.value = value, .tensors = {}, .counts = {}};
  for (std::vector<at::Tensor>& part : parts) {
    message.counts.push_back(static_cast<std::int32_t>(part.size()));
    for (at::Tensor& tensor : part) message.tensors.push_back(std::move(tensor));
  }
  parts.clear();
  return message;
}

std::vector<std::vector<at::Tensor>> unflatten(Message&& message) {
  std::vector<std::vector<at::Tensor>> parts;
  auto next = message.tensors.begin();
  for (const std::int32_t count : message.counts) {
    parts.emplace_back(std::make_move_iterator(next), std::make_move_iterator(next + count));
    next += count;
  }
  return parts;
}

void own_storage(Message& message) {
  const std::vector<bool> alone = held_alone(message.tensors);
  for (std::size_t i = 0; i < message.tensors.size(); ++i)
    if (!alone[i]) message.tensors[i] = at::clone(message.tensors[i], at::MemoryFormat::Contiguous);
}

void share_storage(Message& message, MemoryAccount& account) {
  const std::vector<bool> alone = held_alone(message.tensors);
  std::vector<at::Tensor> held(message.tensors.size());
  bool any = false;
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    if (alone[i]) continue;
    held[i] = std::move(message.tensors[i]);
    any = true;
  }
  if (!any) return;
  std::vector<at::Tensor> shared = share(held, account);
  for (std::size_t i = 0; i < message.tensors.size(); ++i)
    if (!alone[i]) message.tensors[i] = std::move(shared[i]);
}

void charge_to(const Message& message, MemoryAccount& account) {
  for (const at::Tensor& tensor : message.tensors) charge_to(tensor, account);
}

std::string describe_tensors(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> each;
  for (const at::Tensor& tensor : tensors) each.push_back(describe_one(tensor));
  return fmt::format("{} tensors: {}", tensors.size(), fmt::join(each, ", "));
}

std::string check_name(const Message& message, Value value) {
  if (message.value == value) return {};
  return fmt::format("expected the {}, got the {}", describe(value), describe(message.value));
}

std::string check_payload(const Message& message, Value value, const std::vector<std::int64_t>& widths,
                          std::int64_t batch, std::int64_t tokens, at::ScalarType type) {
  if (message.value != value) return check_name(message, value);
  bool fits = message.tensors.size() == widths.size();
  for (std::size_t i = 0; fits && i < widths.size(); ++i) {
    const at::Tensor& tensor = message.tensors[i];
    fits = tensor.defined() && tensor.scalar_type() == type && tensor.dim() == 3 && tensor.size(0) == batch &&
           tensor.size(1) == tokens && tensor.size(2) == widths[i];
  }
  if (fits) return {};
  std::vector<std::string> expected;
  for (const std::int64_t width : widths)
    expected.push_back(fmt::format("{} [{}, {}, {}]", c10::toString(type), batch, tokens, width));
  return fmt::format("the {} should be {} tensors: {}; got {}", describe(value), widths.size(),
                     fmt::join(expected, ", "), describe_tensors(message.tensors));
}

std::string check_like(const Message& message, Value value, const std::vector<at::Tensor>& like) {
  if (message.value != value) return check_name(message, value);
  bool fits = message.tensors.size() == like.size();
  for (std::size_t i = 0; fits && i < like.size(); ++i) {
    fits = message.tensors[i].defined() == like[i].defined() &&
           (!like[i].defined() || (message.tensors[i].sizes() == like[i].sizes() &&
                                   message.tensors[i].scalar_type() == like[i].scalar_type()));
  }
  if (fits) return {};
  return fmt::format("the {} should be {}; got {}", describe(value), describe_tensors(like),
                     describe_tensors(message.tensors));
}

}  // namespace plait
