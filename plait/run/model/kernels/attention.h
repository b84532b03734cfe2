#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace plait::kernels {

// B batch, N query heads, G key heads (G divides N), T queries, S keys, H head size. Scores are scaled by 1/sqrt(H).
// Last dimensions are dense, the others may have any strides. lse: [B,N,T] fp32 (fp64 for fp64), natural log.

enum class Mask : std::uint8_t { kNone, kCausal };  ///< causal: query t sees keys 0..t of the block

struct AttentionResult {
  at::Tensor out;  ///< [B,N,T,H], stored as [B,T,N,H]
  at::Tensor lse;
};
/// Softmax attention over one block of keys.
///
/// \param q    [B,N,T,H]
/// \param k,v  [B,G,S,H]; heads are shared by N/G queries each and never expanded
AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Mask mask);

struct AttentionGrads {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
};
/// Gradients that one block of keys contributes.
///
/// \param dout,out,lse  of the whole attention, that is, merged over all blocks
AttentionGrads attention_grad(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& out, const at::Tensor& lse, Mask mask);

/// The same by plain matrix products, for other devices and for tests.
AttentionResult attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Mask mask);
AttentionGrads attention_grad_reference(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, Mask mask);

/// Collects attention over blocks of keys: adding blocks one by one gives the attention over all their keys.
/// \source Milakov & Gimelshein 2018, arXiv:1805.02867 (parallel form)
class AttentionSum {
 public:
  void add(AttentionResult block);
  /// The result in the type of the blocks, stored as [B,T,N,H].
  AttentionResult finish() &&;

 private:
  AttentionResult first_;  ///< kept as it is while there is but one block
  at::Tensor out_;         ///< statistics type from the second block on
};

}  // namespace plait::kernels
