#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace plait {

/// A typed index: two ids of different tags never mix, and none converts from an integer by itself.
///
///     StageId s{3};
///     RankId r = s;              // does not compile
///     rows[r.index()]            // ids index containers through index()
template <class Tag, class Rep = std::int32_t>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(Rep value) : value_(value) {}
  [[nodiscard]] constexpr Rep value() const { return value_; }
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value_); }
  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  Rep value_ = 0;
};

using RankId = Id<struct RankTag>;              ///< one device: one in-order compute lane
using StageId = Id<struct StageTag>;            ///< contiguous run of parts
using MicrobatchId = Id<struct MicrobatchTag>;  ///< one unit of data of a step
using SliceId = Id<struct SliceTag>;            ///< contiguous range of a micro-batch's sequence
using EdgeId = Id<struct EdgeTag>;              ///< activation edge between two stages (index into Layout::edges)
using GroupId = Id<struct GroupTag>;            ///< parameter group (index into Layout::groups)
using RankSetId = Id<struct RankSetTag>;        ///< set of ranks of a collective (index into Layout::rank_sets)

/// A number with a unit: only + - with its own kind and * / with a scalar.
template <class Tag, class Rep>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(Rep value) : value_(value) {}
  [[nodiscard]] constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value_ + b.value_); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value_ - b.value_); }
  friend constexpr Quantity operator*(Quantity a, Rep b) { return Quantity(a.value_ * b); }
  friend constexpr Quantity operator*(Rep a, Quantity b) { return Quantity(a * b.value_); }
  friend constexpr Rep operator/(Quantity a, Quantity b) { return a.value_ / b.value_; }
  friend constexpr Quantity operator/(Quantity a, Rep b) { return Quantity(a.value_ / b); }
  constexpr Quantity& operator+=(Quantity b) {
    value_ += b.value_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity b) {
    value_ -= b.value_;
    return *this;
  }

 private:
  Rep value_ = 0;
};

using Bytes = Quantity<struct BytesTag, std::int64_t>;
using Nanos = Quantity<struct NanosTag, std::int64_t>;

}  // namespace plait

template <class Tag, class Rep>
struct std::hash<plait::Id<Tag, Rep>> {
  std::size_t operator()(plait::Id<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value()); }
};
