#pragma once

#include "plait/run/engine/memory.h"
#include "plait/run/engine/transport.h"
#include "plait/run/model/stage_module.h"

#include <string>
#include <vector>

namespace plait {

/// A stash as a message: the tensors of its parts in a row, and how many each part has.
Message flatten(Value value, std::vector<std::vector<at::Tensor>>&& parts);
std::vector<std::vector<at::Tensor>> unflatten(Message&& message);

/// Copies every tensor of which something outside the message still holds the storage: ranks share no memory, so a
/// receiver may write into what it got, and each rank's bytes are its own. What only the message holds is left as it is.
void own_storage(Message& message);

/// The same without a copy, for what nobody writes into as long as someone else holds it (activations and gradients):
/// sender and receiver share the bytes, and each is charged for them. The new handles are charged to `account`.
///
/// \threads  all handles on the tensors' storages are the caller's
void share_storage(Message& message, MemoryAccount& account);

void charge_to(const Message& message, MemoryAccount& account);

/// "2 tensors: float [2, 8, 32], float [2, 8, 32]".
std::string describe_tensors(const std::vector<at::Tensor>& tensors);

/// Says what is wrong with a received message, naming what was expected and what came; empty if nothing is.
/// Tensors must be [batch, tokens, widths[i]] of `type`.
std::string check_payload(const Message& message, Value value, const std::vector<std::int64_t>& widths,
                          std::int64_t batch, std::int64_t tokens, at::ScalarType type);
/// Only the name: stashes have the form that their kernels gave them.
std::string check_name(const Message& message, Value value);
/// Tensors must be as `like`.
std::string check_like(const Message& message, Value value, const std::vector<at::Tensor>& like);

}  // namespace plait
