#include "plait/run/engine/messages.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace plait {
namespace {

const Value kValue = Value::activation(EdgeId{2}, MicrobatchId{3}, SliceId{0});

TEST(OwnStorage, LeavesWhatTheMessageHoldsAlone) {
  Message message{.value = kValue, .tensors = {}, .counts = {}};
  message.tensors.push_back(at::zeros({2, 3}));
  const void* data = message.tensors[0].data_ptr();
  own_storage(message);
  EXPECT_EQ(message.tensors[0].data_ptr(), data);
}

TEST(OwnStorage, LeavesViewsThatShareOnlyAmongThemselves) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;  // as on a rank: a view for autograd would hold its base
  Message message{.value = kValue, .tensors = {}, .counts = {}};
  {
    const at::Tensor whole = at::zeros({4, 3});
    message.tensors.push_back(whole.narrow(0, 0, 2));
    message.tensors.push_back(whole.narrow(0, 2, 2));
    message.tensors.push_back(message.tensors[0]);
  }
  const void* data = message.tensors[1].data_ptr();
  own_storage(message);
  EXPECT_EQ(message.tensors[1].data_ptr(), data);
}

TEST(OwnStorage, CopiesWhatIsStillHeldElsewhere) {
  const at::Tensor kept = at::full({2, 3}, 5.0);
  Message message{.value = kValue, .tensors = {}, .counts = {}};
  message.tensors.push_back(kept);
  message.tensors.push_back(kept.narrow(1, 1, 1));
  own_storage(message);
  message.tensors[0].zero_();
  message.tensors[1].zero_();
  EXPECT_TRUE(kept.eq(5.0).all().item<bool>());
}

TEST(ShareStorage, CopiesNothing) {
  install_accounting_allocator();
  const at::Tensor kept = at::full({2, 3}, 5.0);
  MemoryAccount& account = make_memory_account();
  Message message{.value = kValue, .tensors = {}, .counts = {}};
  message.tensors.push_back(kept);
  message.tensors.push_back(at::full({2}, 1.0));
  const void* own = message.tensors[1].const_data_ptr();
  share_storage(message, account);
  EXPECT_EQ(message.tensors[0].const_data_ptr(), kept.const_data_ptr());
  EXPECT_FALSE(message.tensors[0].is_same(kept));
  EXPECT_EQ(message.tensors[1].const_data_ptr(), own);
  EXPECT_EQ(account.live(), Bytes{64});
}

TEST(Flatten, KeepsThePartsApart) {
  std::vector<std::vector<at::Tensor>> parts = {{at::full({1}, 1.0), at::Tensor()}, {}, {at::full({1}, 2.0)}};
  const auto back = unflatten(flatten(kValue, std::move(parts)));
  ASSERT_EQ(back.size(), 3U);
  ASSERT_EQ(back[0].size(), 2U);
  EXPECT_EQ(back[0][0].item<double>(), 1.0);
  EXPECT_FALSE(back[0][1].defined());
  EXPECT_TRUE(back[1].empty());
  ASSERT_EQ(back[2].size(), 1U);
  EXPECT_EQ(back[2][0].item<double>(), 2.0);
}

TEST(CheckPayload, AcceptsWhatWasExpected) {
  Message message{.value = kValue, .tensors = {}, .counts = {}};
  message.tensors.push_back(at::zeros({2, 8, 32}, at::kDouble));
  EXPECT_EQ(check_payload(message, kValue, {32}, 2, 8, at::kDouble), "");
}

TEST(CheckPayload, NamesBothSidesOfAMismatch) {
  Message message{.value = kValue, .tensors = {}, .counts = {}};
  message.tensors.push_back(at::zeros({2, 8, 32}, at::kFloat));
  EXPECT_EQ(check_payload(message, kValue, {32}, 2, 8, at::kDouble),
            "the activation of edge 2, micro-batch 3 should be 1 tensors: Double [2, 8, 32]; got 1 tensors: Float [2, "
            "8, 32]");
  EXPECT_EQ(check_payload(message, kValue, {32, 16}, 2, 8, at::kFloat),
            "the activation of edge 2, micro-batch 3 should be 2 tensors: Float [2, 8, 32], Float [2, 8, 16]; got 1 "
            "tensors: Float [2, 8, 32]");
  EXPECT_EQ(check_payload(message, Value::gradient(EdgeId{2}, MicrobatchId{4}, SliceId{1}), {32}, 2, 8, at::kFloat),
            "expected the gradient of edge 2, micro-batch 4, slice 1, got the activation of edge 2, micro-batch 3");
}

}  // namespace
}  // namespace plait
