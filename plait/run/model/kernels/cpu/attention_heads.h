#pragma once

#include "plait/run/model/kernels/cpu/loops.h"
#include "plait/run/model/kernels/cpu/tiles.h"
#include "plait/run/model/kernels/cpu/vectors.h"

namespace plait::kernels::cpu::PLAIT_ISA {

// How attention goes over heads, blocks of queries and spans of keys; what it does with them is the instruction set's.

inline constexpr std::int64_t kSpan = 512;      ///< keys that are packed at once
inline constexpr std::int64_t kSoftened = 128;  ///< keys whose scores are softened at once

/// The vectors of one head.
template <class T>
struct HeadRows {
  T* data;
  std::int64_t stride;
  [[nodiscard]] PLAIT_INLINE T* row(std::int64_t at) const { return data + at * stride; }
  /// Those from `first` on.
  [[nodiscard]] PLAIT_INLINE HeadRows from(std::int64_t first) const { return {row(first), stride}; }
};
template <class T>
PLAIT_INLINE HeadRows<T> rows_of(HeadData<T> heads, std::int64_t b, std::int64_t head) {
  return {heads.data + b * heads.strides.batch + head * heads.strides.head, heads.strides.token};
}

/// One query head in the backward.
template <class T>
struct HeadGrad {
  HeadRows<const T> q;
  HeadRows<const T> out;
  HeadRows<const T> dout;
  HeadRows<T> dq;
  const float* lse;
  float* wide_dq;  ///< [T,H] sums over spans; null where the kernel was given none
};

/// attend(first, q, k, v, out, lse) for kSpan queries of a head from `first` on.
template <class T, class Attend>
void over_queries(const AttentionShape& shape, HeadData<const T> q, HeadData<const T> k, HeadData<const T> v,
                  HeadData<T> out, float* lse, const Attend& attend) {
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
      for (std::int64_t first = 0; first < shape.queries; first += kSpan)
        attend(first, rows_of(q, b, head), rows_of(k, b, kv_head), rows_of(v, b, kv_head), rows_of(out, b, head),
               lse + (b * shape.heads + head) * shape.queries);
    }
}

/// A Span(shape, k, v, first, scratch) for kSpan keys of a head; add_head(shape, HeadGrad, span) for each head of queries
/// that reads them; then the span's dk and dv, [count,H] in fp32, are written.
template <class Span, class T, class AddHead>
void over_keys(const AttentionShape& shape, HeadData<const T> dout, HeadData<const T> q, HeadData<const T> k,
               HeadData<const T> v, HeadData<const T> out, const float* lse, HeadData<T> dq, HeadData<T> dk,
               HeadData<T> dv, float* wide_dq, float* scratch, const AddHead& add_head) {
  const std::int64_t group = shape.heads / shape.kv_heads;
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head)
      for (std::int64_t first = 0; first < shape.keys; first += kSpan) {
        const Span span(shape, rows_of(k, b, kv_head), rows_of(v, b, kv_head), first, scratch);
        for (std::int64_t member = 0; member < group; ++member) {
          const std::int64_t head = kv_head * group + member;
          add_head(shape,
                   HeadGrad<T>{.q = rows_of(q, b, head),
                               .out = rows_of(out, b, head),
                               .dout = rows_of(dout, b, head),
                               .dq = rows_of(dq, b, head),
                               .lse = lse + (b * shape.heads + head) * shape.queries,
                               .wide_dq = wide_dq == nullptr ? nullptr : wide_dq + member * shape.queries * shape.size},
                   span);
        }
        const HeadRows<T> to_dk = rows_of(dk, b, kv_head);
        const HeadRows<T> to_dv = rows_of(dv, b, kv_head);
        for (std::int64_t row = 0; row < span.count; ++row)
          for (std::int64_t i = 0; i < shape.size; i += kLanes<float>) {
            store(to_dk.row(first + row) + i, load(span.dk + row * shape.size + i));
            store(to_dv.row(first + row) + i, load(span.dv + row * shape.size + i));
          }
      }
}

/// Behind this span, of `count` queries from `first` on all keys are seen.
PLAIT_INLINE bool is_last_span(const AttentionShape& shape, std::int64_t end, std::int64_t first, std::int64_t count) {
  return end == shape.keys || (shape.causal && first + count <= end);
}

}  // namespace plait::kernels::cpu::PLAIT_ISA
