// Attention in bf16 on the tile registers of AMX: products of 16-bit numbers with fp32 sums, at several times the rate of vectors.
#define PLAIT_ISA amx
#include "plait/run/model/kernels/cpu/attention_heads.h"
#include "plait/run/model/kernels/cpu/loops.h"
#include "plait/run/model/kernels/cpu/tiles.h"
#include "plait/run/model/kernels/cpu/vectors.h"

#include <immintrin.h>

#include <cstring>

namespace plait::kernels::cpu::amx {
namespace {

// A tile holds 16 rows of 64 bytes. As left factor: 16 rows of 32 numbers along the depth. As right factor: 16 pairs of numbers along
// the depth, for 16 columns. As sum: 16 x 16 in fp32. Left factors lie in rows of any stride, right factors are packed tile by tile.
constexpr std::int64_t kSide = 16;
constexpr std::int64_t kDepth = 32;
constexpr std::int64_t kPackedTile = kSide * kDepth;  // numbers

constexpr std::int64_t kQueries = 128;  // queries of a block
constexpr std::int64_t kGroup = 32;     // rows of two tiles

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// The tile registers while a call uses them.
class Tiles {
 public:
  Tiles() {
    const TileConfig config;
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

/// C [32,32] (+)= A [32, depth] B [depth, 32].
///
/// \param b  the packed tiles of the first 16 columns, along the depth; those of the next 16 begin `b_columns` numbers further on
PLAIT_INLINE void multiply32(const Bf16* a, std::int64_t a_stride, const Bf16* b, std::int64_t b_columns, float* c,
                             std::int64_t c_stride, std::int64_t depth, bool adds) {
  const auto c_bytes = c_stride * 4;
  const auto a_bytes = a_stride * 2;
  if (adds) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + kSide, c_bytes);
    _tile_loadd(2, c + kSide * c_stride, c_bytes);
    _tile_loadd(3, c + kSide * c_stride + kSide, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t k = 0; k < depth; k += kDepth, b += kPackedTile) {
    _tile_loadd(4, a + k, a_bytes);
    _tile_loadd(5, a + kSide * a_stride + k, a_bytes);
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + b_columns, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kSide, c_bytes);
  _tile_stored(2, c + kSide * c_stride, c_bytes);
  _tile_stored(3, c + kSide * c_stride + kSide, c_bytes);
}

PLAIT_INLINE U32 bits_of(F32 x) {
  return __builtin_convertvector(narrow(x), U32);
}
PLAIT_INLINE U32 load_bits(const Bf16* from) {
  U16 bits;
  std::memcpy(&bits, from, sizeof(bits));
  return __builtin_convertvector(bits, U32);
}

using Rows = HeadRows<const Bf16>;
using Results = HeadRows<Bf16>;

PLAIT_INLINE std::int64_t rounded(std::int64_t count) {
  return (count + kGroup - 1) / kGroup * kGroup;
}

/// Rows one behind the other; zeros up to `padded` of them.
void copy_rows(Rows from, std::int64_t count, std::int64_t padded, std::int64_t size, Bf16* to) {
  const auto bytes = static_cast<std::size_t>(size) * sizeof(Bf16);
  for (std::int64_t row = 0; row < count; ++row) std::memcpy(to + row * size, from.row(row), bytes);
  std::memset(to + count * size, 0, static_cast<std::size_t>(padded - count) * bytes);
}

/// Rows [count, size] as right factor with the depth along a row: column j is row j. Tiles of 16 columns lie behind each other along
/// the depth, then come the next 16.
void pack_columns(Rows from, std::int64_t count, std::int64_t padded, std::int64_t size, Bf16* to) {
  for (std::int64_t column = 0; column < padded; column += kSide)
    for (std::int64_t h = 0; h < size; h += kDepth, to += kPackedTile) {
      F32 square[kSide];
      for (unsigned j = 0; j < kSide; ++j) {
        square[j] = F32{};
        if (column + j < count) std::memcpy(&square[j], from.row(column + j) + h, sizeof(F32));
      }
      transpose(square);
      std::memcpy(to, square, sizeof(square));
    }
}

/// Rows [count, size] as right factor with the depth along the rows: tiles of 16 columns of `size` behind each other along the depth.
void pack_rows(Rows from, std::int64_t count, std::int64_t padded, std::int64_t size, Bf16* to) {
  for (std::int64_t column = 0; column < size; column += kSide)
    for (std::int64_t row = 0; row < padded; row += 2, to += 2 * kSide) {
      const U32 low = row < count ? load_bits(from.row(row) + column) : U32{};
      const U32 high = row + 1 < count ? load_bits(from.row(row + 1) + column) : U32{};
      const U32 pairs = low | (high << 16U);
      std::memcpy(to, &pairs, sizeof(pairs));
    }
}

/// [padded, size] to [size, padded].
void transpose_rows(Rows from, std::int64_t count, std::int64_t padded, std::int64_t size, Bf16* to) {
  for (std::int64_t row = 0; row < padded; row += kSide)
    for (std::int64_t h = 0; h < size; h += kSide) {
      F32 square[kSide];
      for (unsigned j = 0; j < kSide; ++j) square[j] = row + j < count ? load(from.row(row + j) + h) : F32{};
      transpose(square);
      for (unsigned i = 0; i < kSide; ++i) store(to + (h + i) * padded + row, square[i]);
    }
}

/// Parts of a thread's scratch, each on its own cache lines.
struct Scratch {
  float* next;
  float* floats(std::int64_t count) {
    float* taken = next;
    next += (count + kSide - 1) / kSide * kSide;
    return taken;
  }
  Bf16* numbers(std::int64_t count) { return reinterpret_cast<Bf16*>(floats((count + 1) / 2)); }
};

PLAIT_INLINE F32 where(I32 condition, F32 x, float other) {
  return condition ? x : splat(other, x);
}
PLAIT_INLINE I32 lanes_from(std::int64_t first) {
  const I32 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane + static_cast<std::int32_t>(first);
}

/// kSpan queries of one head over all their keys.
void attend(const AttentionShape& shape, std::int64_t first, Rows q, Rows k, Rows v, Results out, float* lse,
            Scratch scratch) {
  const std::int64_t size = shape.size;
  const std::int64_t count = least(kSpan, shape.queries - first);
  const std::int64_t padded = rounded(count);
  Bf16* queries = scratch.numbers(kSpan * size);
  Bf16* keys = scratch.numbers(kSpan * size);
  Bf16* values = scratch.numbers(kSpan * size);
  float* sums = scratch.floats(kSpan * size);
  float* top = scratch.floats(kSpan);
  float* total = scratch.floats(kSpan);
  alignas(64) float scores[kGroup * kSoftened];
  alignas(64) Bf16 weights[kGroup * kSoftened];
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(size));
  copy_rows(q.from(first), count, padded, size, queries);
  for (std::int64_t row = 0; row < padded; ++row) {
    top[row] = -__builtin_inff();
    total[row] = 0;
  }
  std::memset(sums, 0, static_cast<std::size_t>(padded * size) * sizeof(float));
  const std::int64_t num_keys = shape.causal ? least(shape.keys, first + count) : shape.keys;
  for (std::int64_t span = 0; span < num_keys; span += kSpan) {
    const std::int64_t width = least(kSpan, num_keys - span);
    const std::int64_t padded_width = rounded(width);
    pack_columns(k.from(span), width, padded_width, size, keys);
    pack_rows(v.from(span), width, padded_width, size, values);
    for (std::int64_t row = 0; row < padded; row += kGroup)
      for (std::int64_t key = 0; key < width; key += kSoftened) {
        // Keys that the group's last query sees, and what of that is computed: whole groups.
        const std::int64_t here = least(kSoftened, width - key);
        const std::int64_t deepest = shape.causal ? least(here, first + row + kGroup - span - key) : here;
        if (deepest <= 0) break;
        const std::int64_t depth = rounded(deepest);
        for (std::int64_t at = 0; at < depth; at += kGroup)
          multiply32(queries + row * size, size, keys + (key + at) * size, kSide * size, scores + at, kSoftened, size,
                     false);
        for (std::int64_t r = 0; r < kGroup; ++r) {
          const std::int64_t seen = shape.causal ? least(here, first + row + r + 1 - span - key) : here;
          float* x = scores + r * kSoftened;
          F32 highest = splat(top[row + r], F32{});
          for (std::int64_t i = 0; i < depth; i += kSide) {
            const F32 s =
                where(lanes_from(i) < static_cast<std::int32_t>(seen), load(x + i) * scale, -__builtin_inff());
            store(x + i, s);
            highest = s > highest ? s : highest;
          }
          const float new_top = lane_max(highest);
          F32 sum{};
          for (std::int64_t i = 0; i < depth; i += kSide) {
            // A row that sees none of these keys, nor any before, has no top yet.
            const F32 p = seen > 0 ? exp(load(x + i) - new_top) : F32{};
            sum += p;
            store(weights + r * kSoftened + i, p);
          }
          if (new_top != top[row + r]) {
            const float factor = exp(splat(top[row + r] - new_top, F32{}))[0];
            total[row + r] *= factor;
            float* o = sums + (row + r) * size;
            for (std::int64_t i = 0; i < size; i += kSide) store(o + i, load(o + i) * factor);
            top[row + r] = new_top;
          }
          total[row + r] += lane_sum(sum);
        }
        for (std::int64_t column = 0; column < size; column += kGroup)
          multiply32(weights, kSoftened, values + column * padded_width + key * kSide, kSide * padded_width,
                     sums + row * size + column, size, depth, true);
      }
  }
  for (std::int64_t row = 0; row < count; ++row) {
    lse[first + row] = top[row] + __builtin_logf(total[row]);
    const float factor = 1.0F / total[row];
    for (std::int64_t i = 0; i < size; i += kSide)
      store(out.row(first + row) + i, load(sums + row * size + i) * factor);
  }
}

struct Span {
  std::int64_t first;
  std::int64_t count;
  std::int64_t padded;
  Scratch rest;
  Bf16* keys;             ///< [padded,H]
  Bf16* values;           ///< [padded,H]
  Bf16* transposed_keys;  ///< [H,padded]
  float* dk;              ///< [padded,H]
  float* dv;

  Span(const AttentionShape& shape, Rows k, Rows v, std::int64_t begin, float* scratch)
      : first(begin), count(least(kSpan, shape.keys - begin)), padded(rounded(count)), rest{scratch} {
    const std::int64_t size = shape.size;
    keys = rest.numbers(kSpan * size);
    values = rest.numbers(kSpan * size);
    transposed_keys = rest.numbers(kSpan * size);
    dk = rest.floats(kSpan * size);
    dv = rest.floats(kSpan * size);
    copy_rows(k.from(first), count, padded, size, keys);
    copy_rows(v.from(first), count, padded, size, values);
    transpose_rows(k.from(first), count, padded, size, transposed_keys);
    std::memset(dk, 0, static_cast<std::size_t>(padded * size) * sizeof(float));
    std::memset(dv, 0, static_cast<std::size_t>(padded * size) * sizeof(float));
  }
};

/// Adds what a head's queries and a span's keys give each other. Scores stand as [keys, queries].
void add_head(const AttentionShape& shape, const HeadGrad<Bf16>& head, const Span& span) {
  const std::int64_t size = shape.size;
  Scratch scratch = span.rest;
  Bf16* query_columns = scratch.numbers(kQueries * size);
  Bf16* slope_columns = scratch.numbers(kQueries * size);
  Bf16* query_rows = scratch.numbers(kQueries * size);
  Bf16* slope_rows = scratch.numbers(kQueries * size);
  float* dq = scratch.floats(size * kQueries);  // [H, queries]
  alignas(64) float scores[kGroup * kQueries];
  alignas(64) float slopes[kGroup * kQueries];
  alignas(64) Bf16 weights[kGroup * kQueries];
  alignas(64) Bf16 score_slopes[kGroup * kQueries];
  alignas(64) Bf16 packed_slopes[kGroup * kQueries];
  alignas(64) float lse[kQueries];
  alignas(64) float delta[kQueries];
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(size));
  const std::int64_t begin = shape.causal ? span.first / kQueries * kQueries : 0;
  for (std::int64_t first = begin; first < shape.queries; first += kQueries) {
    const std::int64_t count = least(kQueries, shape.queries - first);
    const std::int64_t padded = rounded(count);
    const Rows q = head.q.from(first);
    const Rows dout = head.dout.from(first);
    pack_columns(q, count, padded, size, query_columns);
    pack_columns(dout, count, padded, size, slope_columns);
    pack_rows(q, count, padded, size, query_rows);
    pack_rows(dout, count, padded, size, slope_rows);
    for (std::int64_t row = 0; row < padded; ++row) {
      F32 sum{};
      if (row < count)
        for (std::int64_t i = 0; i < size; i += kSide)
          sum += load(dout.row(row) + i) * load(head.out.row(first + row) + i);
      delta[row] = lane_sum(sum);
      lse[row] = row < count ? head.lse[first + row] : __builtin_inff();  // weights of rows behind the last: zero
    }
    std::memset(dq, 0, static_cast<std::size_t>(size * kQueries) * sizeof(float));
    for (std::int64_t key = 0; key < span.count; key += kGroup) {
      // Queries from here on see any of these keys.
      const std::int64_t from = shape.causal ? largest(0, span.first + key - first) / kGroup * kGroup : 0;
      if (from >= padded) break;
      const std::int64_t here = least(kGroup, span.count - key);
      for (std::int64_t at = from; at < padded; at += kGroup) {
        multiply32(span.keys + key * size, size, query_columns + at * size, kSide * size, scores + at, kQueries, size,
                   false);
        multiply32(span.values + key * size, size, slope_columns + at * size, kSide * size, slopes + at, kQueries, size,
                   false);
      }
      for (std::int64_t r = 0; r < kGroup; r += 2)
        for (std::int64_t i = from; i < padded; i += kSide) {
          U32 halves[2];
          for (std::int64_t one = 0; one < 2; ++one) {
            const std::int64_t at = (r + one) * kQueries + i;
            F32 p = exp(load(scores + at) * scale - load(lse + i));
            if (r + one >= here) p = F32{};
            if (shape.causal) p = where(lanes_from(first + i - span.first - key - r - one) >= 0, p, 0);
            const F32 ds = p * (load(slopes + at) - load(delta + i)) * scale;
            store(weights + at, p);
            store(score_slopes + at, ds);
            halves[one] = bits_of(ds);
          }
          // As right factor with the depth along the keys: one tile for 16 queries.
          const U32 pairs = halves[0] | (halves[1] << 16U);
          std::memcpy(packed_slopes + i / kSide * kPackedTile + r * kSide, &pairs, sizeof(pairs));
        }
      for (std::int64_t column = 0; column < size; column += kGroup) {
        const std::int64_t at = column * padded + from * kSide;
        multiply32(weights + from, kQueries, slope_rows + at, kSide * padded, span.dv + key * size + column, size,
                   padded - from, true);
        multiply32(score_slopes + from, kQueries, query_rows + at, kSide * padded, span.dk + key * size + column, size,
                   padded - from, true);
        for (std::int64_t i = from; i < padded; i += kGroup)
          multiply32(span.transposed_keys + column * span.padded + key, span.padded,
                     packed_slopes + i / kSide * kPackedTile, kPackedTile, dq + column * kQueries + i, kQueries, kGroup,
                     true);
      }
    }
    const bool is_first = span.first == 0;
    const bool is_last = is_last_span(shape, span.first + span.count, first, count);
    for (std::int64_t row = 0; row < padded; row += kSide)
      for (std::int64_t h = 0; h < size; h += kSide) {
        F32 square[kSide];
        for (unsigned i = 0; i < kSide; ++i) square[i] = load(dq + (h + i) * kQueries + row);
        transpose(square);
        for (unsigned j = 0; j < kSide && row + j < count; ++j) {
          float* sum = head.wide_dq + (first + row + j) * size + h;
          const F32 x = is_first ? square[j] : square[j] + load(sum);
          if (is_last)
            store(head.dq.row(first + row + j) + h, x);
          else
            store(sum, x);
        }
      }
  }
}

void attention(const AttentionShape& shape, HeadData<const Bf16> q, HeadData<const Bf16> k, HeadData<const Bf16> v,
               HeadData<Bf16> out, float* lse, float* scratch) {
  if (shape.size % kDepth != 0) return avx512::tables().bf16.attention(shape, q, k, v, out, lse, scratch);
  const Tiles tiles;
  over_queries(shape, q, k, v, out, lse,
               [&](std::int64_t first, Rows queries, Rows keys, Rows values, Results result, float* lse_of_head) {
                 attend(shape, first, queries, keys, values, result, lse_of_head, Scratch{scratch});
               });
}

void attention_grad(const AttentionShape& shape, HeadData<const Bf16> dout, HeadData<const Bf16> q,
                    HeadData<const Bf16> k, HeadData<const Bf16> v, HeadData<const Bf16> out, const float* lse,
                    HeadData<Bf16> dq, HeadData<Bf16> dk, HeadData<Bf16> dv, float* wide_dq, float* scratch) {
  if (shape.size % kDepth != 0)
    return avx512::tables().bf16.attention_grad(shape, dout, q, k, v, out, lse, dq, dk, dv, wide_dq, scratch);
  const Tiles tiles;
  over_keys<Span>(shape, dout, q, k, v, out, lse, dq, dk, dv, wide_dq, scratch, add_head);
}

}  // namespace

void use_tiles(Loops<Bf16>& loops) {
  loops.attention = attention;
  loops.attention_grad = attention_grad;
}

}  // namespace plait::kernels::cpu::amx
