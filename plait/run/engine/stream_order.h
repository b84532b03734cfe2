#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/DeviceType.h>

#include <cstddef>
#include <memory>

namespace plait {

/// Order between the streams of ranks: the host only notes what has to wait for what, the devices do the waiting. Marks are
/// numbered; each is set before somebody follows it, and the threads that call know that from each other.
///
/// \threads  concurrently for different marks; one mark is not set while it is followed
class StreamOrder {
 public:
  virtual ~StreamOrder() = default;
  /// The mark now stands behind all that this thread's stream was given.
  virtual void set(std::size_t mark) = 0;
  /// What this thread's stream is given from now on waits for the mark.
  virtual void follow(std::size_t mark) = 0;
  /// This thread's stream uses the tensor: its memory is not used again before that is over, whoever drops it.
  virtual void use(const at::Tensor& tensor) = 0;
  /// The tensor on this thread's device: itself, or a copy where it came from another.
  virtual at::Tensor bring(const at::Tensor& tensor) = 0;
};

/// By events. \param num_marks  all that will ever be set
std::unique_ptr<StreamOrder> make_stream_order(c10::DeviceType device, std::size_t num_marks);

}  // namespace plait
