#include "plait/run/engine/memory.h"

#include "plait/run/model/kernels/types.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace plait {
namespace {

class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() { install_accounting_allocator(); }
};

TEST_F(MemoryTest, CountsWhatTensorsAskedForRoundedTo64) {
  MemoryAccount& account = make_memory_account();
  const AccountScope scope(account);
  {
    const at::Tensor a = at::empty({100}, at::kFloat);  // 400 -> 448
    const at::Tensor b = at::empty({16}, at::kDouble);  // 128
    EXPECT_EQ(account.live(), Bytes{576});
  }
  EXPECT_EQ(account.live(), Bytes{0});
  EXPECT_EQ(account.peak(), Bytes{576});
}

TEST_F(MemoryTest, ScopesNestAndChargeTheInnerAccount) {
  MemoryAccount& outer = make_memory_account();
  MemoryAccount& inner = make_memory_account();
  const AccountScope outer_scope(outer);
  at::Tensor kept;
  {
    const AccountScope inner_scope(inner);
    kept = at::empty({16}, at::kFloat);
  }
  const at::Tensor other = at::empty({32}, at::kFloat);
  EXPECT_EQ(inner.live(), Bytes{64});
  EXPECT_EQ(outer.live(), Bytes{128});
  kept.reset();
  EXPECT_EQ(inner.live(), Bytes{0});
}

TEST_F(MemoryTest, HandingOverMovesTheChargeAndItsFreeIsTheNewHolders) {
  MemoryAccount& giver = make_memory_account();
  MemoryAccount& taker = make_memory_account();
  at::Tensor tensor;
  {
    const AccountScope scope(giver);
    tensor = at::empty({16}, at::kFloat);
  }
  charge_to(tensor, taker);
  EXPECT_EQ(std::pair(giver.live(), taker.live()), std::pair(Bytes{0}, Bytes{64}));
  std::thread([moved = std::move(tensor)]() mutable { moved.reset(); }).join();
  EXPECT_EQ(std::pair(giver.live(), taker.live()), std::pair(Bytes{0}, Bytes{0}));
  EXPECT_EQ(std::pair(giver.peak(), taker.peak()), std::pair(Bytes{64}, Bytes{64}));
}

TEST_F(MemoryTest, EachHolderOfSharedBytesIsChargedForThemAsLongAsItHoldsThem) {
  using Live = std::tuple<Bytes, Bytes, Bytes>;
  MemoryAccount& first = make_memory_account();
  MemoryAccount& second = make_memory_account();
  MemoryAccount& third = make_memory_account();
  const auto live = [&] { return Live(first.live(), second.live(), third.live()); };
  std::vector<at::Tensor> held;
  {
    const AccountScope scope(first);
    held = {at::full({2, 8}, 3.0, at::kFloat).narrow(1, 4, 4)};
  }
  std::vector<at::Tensor> other = share(held, second);
  EXPECT_EQ(other[0].const_data_ptr(), held[0].const_data_ptr());
  EXPECT_EQ(other[0].sizes(), held[0].sizes());
  EXPECT_EQ(other[0].strides(), held[0].strides());
  EXPECT_EQ(live(), Live(Bytes{64}, Bytes{64}, Bytes{0}));
  held.clear();
  EXPECT_EQ(live(), Live(Bytes{0}, Bytes{64}, Bytes{0}));
  EXPECT_TRUE(other[0].eq(3.0).all().item<bool>());
  const std::vector<at::Tensor> again = share(other, third);
  charge_to(other[0], first);
  EXPECT_EQ(live(), Live(Bytes{64}, Bytes{0}, Bytes{64}));
  std::thread([moved = std::move(other)]() mutable { moved.clear(); }).join();
  EXPECT_EQ(live(), Live(Bytes{0}, Bytes{0}, Bytes{64}));
  EXPECT_TRUE(again[0].eq(3.0).all().item<bool>());
}

TEST_F(MemoryTest, WhatWasSharedIsNobodysToOverwrite) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  std::vector<at::Tensor> held = {at::full({16}, 3.0)};
  EXPECT_TRUE(kernels::is_sole_owner(held[0]));
  const std::vector<at::Tensor> other = share(held, make_memory_account());
  EXPECT_FALSE(kernels::is_sole_owner(held[0]));
  EXPECT_FALSE(kernels::is_sole_owner(other[0]));
}

TEST_F(MemoryTest, SharedViewsOfOneStorageAreChargedOnce) {
  MemoryAccount& taker = make_memory_account();
  const at::Tensor whole = at::full({32}, 3.0, at::kFloat);
  const std::vector<at::Tensor> shared = share({whole.narrow(0, 0, 16), at::Tensor(), whole.narrow(0, 16, 16)}, taker);
  EXPECT_EQ(taker.live(), Bytes{128});
  EXPECT_FALSE(shared[1].defined());
  EXPECT_TRUE(shared[2].is_alias_of(shared[0]));
}

TEST_F(MemoryTest, BlocksOfEverySizeAreAlignedAndApart) {
  std::vector<std::pair<at::Tensor, std::uint8_t>> blocks;
  std::uint8_t fill = 0;
  for (std::int64_t size = 1; size < 300'000; size += 1 + size / 7) {
    blocks.emplace_back(at::empty({size}, at::kByte), ++fill);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back().first.data_ptr()) % 64, 0U) << size;
    blocks.back().first.fill_(fill);
  }
  for (const auto& [block, value] : blocks) EXPECT_TRUE(block.eq(value).all().item<bool>()) << block.numel();
}

TEST_F(MemoryTest, ASteadyLoopTakesNothingFromTheSystem) {
  const auto work = [] {
    for (std::int64_t size : {1'000, 50'000, 1'000'000}) {
      const at::Tensor a = at::empty({size}, at::kFloat);
      const at::Tensor b = at::empty({size}, at::kFloat);
    }
  };
  work();
  const Bytes before = reserved_memory();
  for (int i = 0; i < 10; ++i) work();
  EXPECT_EQ(reserved_memory(), before);
}

TEST_F(MemoryTest, BlocksFreedByAnotherThreadComeHome) {
  const auto hand_over = [] {
    at::Tensor tensor = at::empty({77'777}, at::kFloat);
    std::thread([moved = std::move(tensor)]() mutable { moved.reset(); }).join();
  };
  hand_over();
  const Bytes before = reserved_memory();
  for (int i = 0; i < 10; ++i) hand_over();
  EXPECT_EQ(reserved_memory(), before);
}

TEST_F(MemoryTest, FreedBytesBecomeNaNWhenAsked) {
  set_freed_memory(FreedMemory::kFillWithNaN);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const void* where = nullptr;
    {
      const at::Tensor tensor = at::full({123}, 1.0, type);
      where = tensor.data_ptr();
    }
    const at::Tensor again = at::empty({123}, type);
    ASSERT_EQ(again.data_ptr(), where);
    EXPECT_TRUE(again.to(at::kDouble).isnan().all().item<bool>());
  }
  set_freed_memory(FreedMemory::kLeaveAsIs);
}

}  // namespace
}  // namespace plait
