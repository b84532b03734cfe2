#pragma once

#include "plait/run/model/kernels/cpu/attention_blocks.h"
#include "plait/run/model/kernels/cpu/loops.h"
#include "plait/run/model/kernels/cpu/tiles.h"
#include "plait/run/model/kernels/cpu/vectors.h"

namespace plait::kernels::cpu::PLAIT_ISA {

/// Softmax attention over one block of keys, a head at a time; see loops.h.
/// \source Dao 2023, arXiv:2307.08691, algorithms 1 and 2
template <class T>
struct AttentionCode {
  using Rows = HeadRows<const T>;
  using Results = HeadRows<T>;

  static void attention(const AttentionShape& shape, HeadData<const T> q, HeadData<const T> k, HeadData<const T> v,
                        HeadData<T> out, float* lse, float* scratch) {
    over_queries(shape, q, k, v, out, lse,
                 [&](std::int64_t first, Rows queries, Rows keys, Rows values, Results result, float* lse_of_head) {
                   attend(shape, first, queries, keys, values, result, lse_of_head, AttentionScratch(scratch));
                 });
  }

  static void attention_grad(const AttentionShape& shape, HeadData<const T> dout, HeadData<const T> q,
                             HeadData<const T> k, HeadData<const T> v, HeadData<const T> out, const float* lse,
                             HeadData<T> dq, HeadData<T> dk, HeadData<T> dv, float* wide_dq, float* scratch) {
    over_keys<Span>(shape, dout, q, k, v, out, lse, dq, dk, dv, wide_dq, scratch, add_head);
  }

 private:
  PLAIT_INLINE static float scale_of(const AttentionShape& shape) {
    return 1.0F / __builtin_sqrtf(static_cast<float>(shape.size));
  }

  /// kSpan queries from `first` on, over all their keys.
  static void attend(const AttentionShape& shape, std::int64_t first, Rows q, Rows k, Rows v, Results out, float* lse,
                     AttentionScratch parts) {
    const std::int64_t size = shape.size;
    const std::int64_t count = least(kSpan, shape.queries - first);
    float* queries = parts.take(kSpan, size);
    float* sums = parts.take(kSpan, size);
    float* keys = parts.take(kSpan, size);
    float* values = parts.take(kSpan, size);
    float* top = parts.take(kSpan, 1);
    float* total = parts.take(kSpan, 1);
    alignas(64) float scores[kTileRows * kSoftened];
    pack(q.from(first), count, size, queries);
    for (std::int64_t row = 0; row < count; ++row) {
      top[row] = -__builtin_inff();
      total[row] = 0;
    }
    __builtin_memset(sums, 0, static_cast<std::size_t>(count * size) * sizeof(float));
    const std::int64_t num_keys = shape.causal ? least(shape.keys, first + count) : shape.keys;
    for (std::int64_t span = 0; span < num_keys; span += kSpan) {
      const std::int64_t width = least(kSpan, num_keys - span);
      pack_transposed(k.from(span), width, size, scale_of(shape), keys);
      pack(v.from(span), width, size, values);
      for (std::int64_t block = 0; block < count; block += kQueries)
        for (std::int64_t key = 0; key < width; key += kSoftened)
          for (std::int64_t row = block; row < least(count, block + kQueries); row += kTileRows) {
            const std::int64_t rows = least(kTileRows, count - row);
            const std::int64_t here = least(kSoftened, width - key);
            const std::int64_t deepest = seen(shape, first + row + rows - 1, span + key, here);
            if (deepest == 0) continue;
            for (std::int64_t panel = 0; panel < deepest; panel += kKeys)
              multiply({queries + row * size, size}, 1, {keys + (key + panel) * size, kKeys},
                       {scores + panel, kSoftened}, rows, kKeys, size, /*adds=*/false);
            for (std::int64_t r = 0; r < rows; ++r)
              soften(scores + r * kSoftened, seen(shape, first + row + r, span + key, here), deepest, top[row + r],
                     total[row + r], sums + (row + r) * size, size);
            multiply({scores, kSoftened}, 1, {values + key * size, size}, {sums + row * size, size}, rows, size,
                     deepest, /*adds=*/true);
          }
    }
    for (std::int64_t row = 0; row < count; ++row) {
      lse[first + row] = top[row] + __builtin_logf(total[row]);
      const float factor = 1.0F / total[row];
      for (std::int64_t i = 0; i < size; i += kLanes<float>)
        store(out.row(first + row) + i, load(sums + row * size + i) * factor);
    }
  }

  /// The first `count` scores of a query become exponentials against the largest so far, those up to `width` zero; what was
  /// summed before is scaled to it.
  PLAIT_INLINE static void soften(float* scores, std::int64_t count, std::int64_t width, float& top, float& total,
                                  float* sums, std::int64_t size) {
    const float lowest = -__builtin_inff();
    F32 highest = splat(top, F32{});
    for (std::int64_t i = 0; i < count; i += kLanes<float>) {
      const F32 x = where_seen(load(scores + i), i, count, lowest);
      highest = x > highest ? x : highest;
    }
    const float new_top = lane_max(highest);
    F32 sum{};
    for (std::int64_t i = 0; i < width; i += kLanes<float>) {
      const F32 x = where_seen(exp(load(scores + i) - new_top), i, count, 0);
      sum += x;
      store(scores + i, x);
    }
    if (new_top != top) {
      const float factor = exp(splat(top - new_top, F32{}))[0];
      total *= factor;
      for (std::int64_t i = 0; i < size; i += kLanes<float>) store(sums + i, load(sums + i) * factor);
      top = new_top;
    }
    total += lane_sum(sum);
  }

  /// What is packed of a span of keys, and their gradients.
  struct Span {
    std::int64_t first;
    std::int64_t count;
    float* keys;
    float* transposed_keys;  ///< scaled
    float* transposed_values;
    float* dk;
    float* dv;

    AttentionScratch rest;

    Span(const AttentionShape& shape, Rows k, Rows v, std::int64_t begin, float* scratch)
        : first(begin), count(least(kSpan, shape.keys - begin)), rest(scratch) {
      const std::int64_t size = shape.size;
      keys = rest.take(kSpan, size);
      transposed_keys = rest.take(kSpan, size);
      transposed_values = rest.take(kSpan, size);
      dk = rest.take(kSpan, size);
      dv = rest.take(kSpan, size);
      pack(k.from(first), count, size, keys);
      pack_transposed(k.from(first), count, size, scale_of(shape), transposed_keys);
      pack_transposed(v.from(first), count, size, 1.0F, transposed_values);
      __builtin_memset(dk, 0, static_cast<std::size_t>(count * size) * sizeof(float));
      __builtin_memset(dv, 0, static_cast<std::size_t>(count * size) * sizeof(float));
    }
  };

  /// Adds what a head's queries and a span's keys give each other.
  static void add_head(const AttentionShape& shape, const HeadGrad<T>& head, const Span& span) {
    const std::int64_t size = shape.size;
    AttentionScratch parts = span.rest;
    float* queries = parts.take(kQueries, size);
    float* slopes = parts.take(kQueries, size);
    float* weights = parts.take(kQueries, kKeys);
    float* weight_slopes = parts.take(kQueries, kKeys);
    alignas(64) float dq[kQueries * kLargestHead];
    float delta[kQueries];
    const std::int64_t begin = shape.causal ? span.first / kQueries * kQueries : 0;
    for (std::int64_t first = begin; first < shape.queries; first += kQueries) {
      const std::int64_t count = least(kQueries, shape.queries - first);
      pack(head.q.from(first), count, size, queries);
      pack(head.dout.from(first), count, size, slopes);
      for (std::int64_t row = 0; row < count; ++row) {
        F32 sum{};
        for (std::int64_t i = 0; i < size; i += kLanes<float>)
          sum += load(slopes + row * size + i) * load(head.out.row(first + row) + i);
        delta[row] = lane_sum(sum);
      }
      __builtin_memset(dq, 0, static_cast<std::size_t>(count * size) * sizeof(float));
      for (std::int64_t key = 0; key < span.count; key += kKeys) {
        const std::int64_t width = least(kKeys, span.count - key);
        if (seen(shape, first + count - 1, span.first + key, width) == 0) break;
        for (std::int64_t row = 0; row < count; row += kTileRows) {
          const std::int64_t rows = least(kTileRows, count - row);
          float* p = weights + row * kKeys;
          float* dp = weight_slopes + row * kKeys;
          const std::int64_t deepest = seen(shape, first + row + rows - 1, span.first + key, width);
          if (deepest == 0) {
            __builtin_memset(p, 0, static_cast<std::size_t>(rows * kKeys) * sizeof(float));
            __builtin_memset(dp, 0, static_cast<std::size_t>(rows * kKeys) * sizeof(float));
            continue;
          }
          multiply({queries + row * size, size}, 1, {span.transposed_keys + key * size, kKeys}, {p, kKeys}, rows, kKeys,
                   size, false);
          multiply({slopes + row * size, size}, 1, {span.transposed_values + key * size, kKeys}, {dp, kKeys}, rows,
                   kKeys, size, false);
          for (std::int64_t r = 0; r < rows; ++r)
            slope(p + r * kKeys, dp + r * kKeys, seen(shape, first + row + r, span.first + key, width),
                  head.lse[first + row + r], delta[row + r], scale_of(shape));
          multiply({dp, kKeys}, 1, {span.keys + key * size, size}, {dq + row * size, size}, rows, size, deepest, true);
        }
        for (std::int64_t at = 0; at < width; at += kTileRows) {
          const std::int64_t rows = least(kTileRows, width - at);
          // Queries before the first of these keys see none of them.
          const std::int64_t from = shape.causal ? largest(0, least(count, span.first + key + at - first)) : 0;
          multiply({weights + from * kKeys + at, 1}, kKeys, {slopes + from * size, size},
                   {span.dv + (key + at) * size, size}, rows, size, count - from, true);
          multiply({weight_slopes + from * kKeys + at, 1}, kKeys, {queries + from * size, size},
                   {span.dk + (key + at) * size, size}, rows, size, count - from, true);
        }
      }
      write_dq(shape, head, span, first, count, dq);
    }
  }

  /// The scores of one query become its weights, the gradients of the weights those of the scores.
  PLAIT_INLINE static void slope(float* scores, float* slopes, std::int64_t count, float lse, float delta,
                                 float scale) {
    for (std::int64_t i = 0; i < kKeys; i += kLanes<float>) {
      const F32 p = where_seen(exp(load(scores + i) - lse), i, count, 0);
      store(scores + i, p);
      store(slopes + i, p * (load(slopes + i) - delta) * scale);
    }
  }

  static void write_dq(const AttentionShape& shape, const HeadGrad<T>& head, const Span& span, std::int64_t first,
                       std::int64_t count, const float* dq) {
    const std::int64_t size = shape.size;
    const bool is_first = span.first == 0;
    const bool is_last = is_last_span(shape, span.first + span.count, first, count);
    for (std::int64_t row = 0; row < count; ++row)
      for (std::int64_t i = 0; i < size; i += kLanes<float>) {
        F32 x = load(dq + row * size + i);
        T* to = head.dq.row(first + row) + i;
        if constexpr (sizeof(T) == sizeof(float)) {
          if (!is_first) x += load(to);
          store(to, x);
        } else {
          float* sum = head.wide_dq + (first + row) * size + i;
          if (!is_first) x += load(sum);
          if (is_last)
            store(to, x);
          else
            store(sum, x);
        }
      }
  }
};

}  // namespace plait::kernels::cpu::PLAIT_ISA
