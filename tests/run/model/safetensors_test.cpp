#include "plait/run/hf/safetensors.h"

#include "plait/base/files.h"

#include "support.h"
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace plait::test {
namespace {

/// A file of the given header text and number of data bytes.
std::string file_bytes(const std::string& header, std::size_t data_bytes, std::uint64_t claimed_length) {
  std::string bytes;
  for (unsigned shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(claimed_length >> shift & 0xffU);
  return bytes + header + std::string(data_bytes, '\1');
}
std::string file_bytes(const std::string& header, std::size_t data_bytes) {
  return file_bytes(header, data_bytes, header.size());
}

struct DamagedCase {
  const char* name;
  std::string bytes;
  const char* rule;
  const char* says;
};

std::vector<DamagedCase> damaged_cases() {
  const std::string one = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  return {
      {"Empty", "", "safetensors.truncated", "0 bytes are too few"},
      {"SevenBytes", "1234567", "safetensors.truncated", "7 bytes are too few"},
      {"HeaderOf2To60", file_bytes("{" + one + "}", 8, std::uint64_t{1} << 60U), "safetensors.header_length",
       "1152921504606846976"},
      {"HeaderOf2To64", file_bytes("{}", 0, std::numeric_limits<std::uint64_t>::max()), "safetensors.header_length",
       "18446744073709551615"},
      {"HeaderBeyondFile", file_bytes("{" + one + "}", 8, 1000), "safetensors.truncated",
       "claims a header of 1000 bytes"},
      {"NoJson", file_bytes("{" + one, 8), "safetensors.header", "not a JSON object"},
      {"List", file_bytes("[]", 0), "safetensors.header", "not a JSON object"},
      {"EmptyHeader", file_bytes("", 0), "safetensors.header", "not a JSON object"},
      {"NulBytes", file_bytes(std::string(64, '\0'), 8), "safetensors.header", "not a JSON object"},
      {"DataCutShort", file_bytes("{" + one + "}", 7), "safetensors.truncated", "a ends at byte 8"},
      {"TrailingBytes", file_bytes("{" + one + "}", 9), "safetensors.trailing",
       "end at byte 8 of the data, the file at 9"},
      {"NameTwice", file_bytes("{" + one + "," + one + "}", 8), "safetensors.duplicate", "a twice"},
      {"KeyTwice", file_bytes(R"({"a":{"dtype":"F64","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       "safetensors.duplicate", "dtype twice"},
      {"UnknownDtype", file_bytes(R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8), "safetensors.dtype",
       "unknown dtype F31"},
      {"DtypeNoString", file_bytes(R"({"a":{"dtype":32,"shape":[2],"data_offsets":[0,8]}})", 8), "safetensors.header",
       "a: dtype"},
      {"ShapeMissing", file_bytes(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8), "safetensors.header",
       "a: shape"},
      {"ShapeNegative", file_bytes(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
       "safetensors.header", "a: shape"},
      {"ShapeFraction", file_bytes(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8),
       "safetensors.header", "a: shape"},
      {"SizeMismatch", file_bytes(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8), "safetensors.size",
       "a: bytes 0 to 8 are not what F32 of shape [3] takes"},
      {"SizeOverflow", file_bytes(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}})", 0),
       "safetensors.size", "a: bytes 0 to 0"},
      {"OffsetsBackwards", file_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8),
       "safetensors.size", "a: bytes 8 to 0"},
      {"OffsetsNegative", file_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", 8),
       "safetensors.header", "a: data_offsets"},
      {"OffsetsBeyond", file_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", 8),
       "safetensors.truncated", "a ends at byte 16"},
      {"Overlap", file_bytes("{" + one + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12),
       "safetensors.overlap", "b begins at byte 4"},
      {"Hole", file_bytes("{" + one + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16),
       "safetensors.hole", "b begins at byte 12"},
  };
}

class Damaged : public testing::TestWithParam<DamagedCase> {};

TEST_P(Damaged, IsRefusedByRule) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  ASSERT_TRUE(write_file(path.string(), GetParam().bytes));
  const auto result = SafetensorsFile::open(path);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kIo);
  EXPECT_EQ(result.error().rule, GetParam().rule) << result.error().message;
  EXPECT_THAT(result.error().message,
              testing::AllOf(testing::StartsWith(path.string()), testing::HasSubstr(GetParam().says)));
}
INSTANTIATE_TEST_SUITE_P(Files, Damaged, testing::ValuesIn(damaged_cases()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(Safetensors, EveryPrefixOfAFileIsRefused) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  ASSERT_TRUE(write_safetensors(path, {{"a", at::arange(5, at::kFloat)}, {"b", at::arange(2, at::kDouble)}}));
  const std::string bytes = read_file(path.string()).value();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_TRUE(write_file(path.string(), bytes.substr(0, size)));
    EXPECT_FALSE(SafetensorsFile::open(path)) << size << " bytes";
  }
}

TEST(Safetensors, MissingFileAndFolderAreErrors) {
  const TemporaryFolder folder;
  EXPECT_EQ(SafetensorsFile::open(folder.path() / "none").error().rule, "io.read");
  EXPECT_EQ(SafetensorsFile::open(folder.path()).error().rule, "safetensors.truncated");
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const at::Tensor x = at::arange(12, at::kDouble).div_(7).view({3, 4});
  const TensorMap tensors{{"double", x},
                          {"float", x.to(at::kFloat).t()},  // not dense
                          {"bf16", x.to(at::kBFloat16)},
                          {"half", x.to(at::kHalf)},
                          {"scalar", at::tensor(1.5, at::kDouble)},
                          {"empty", x.narrow(0, 0, 0)},
                          {"quote\"in name", x}};
  ASSERT_TRUE(write_safetensors(path, tensors));
  const TensorMap read = read_safetensors(path).value();
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(read.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(read.at(name).equal(tensor)) << name;
  }
}

TEST(Safetensors, IntegersAreKnownButNotRead) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  ASSERT_TRUE(write_file(path.string(), file_bytes(R"({"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8)));
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file);
  const auto tensor = file->read("a");
  ASSERT_FALSE(tensor);
  EXPECT_EQ(tensor.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(tensor.error().message, testing::HasSubstr("a has dtype I64"));
}

// They were written by the reference implementation.
TEST(Safetensors, RewritesTheFixturesByteForByte) {
  for (const char* name : {"gpt2-tiny", "llama-deep-tiny", "llama-gqa-tied-tiny", "llama-tiny", "qwen2-tiny"}) {
    const auto dir = fixture(name);
    if (dir.empty()) GTEST_SKIP() << "the shared fixtures are not here: " << PLAIT_SHARED_DIR;
    const TemporaryFolder folder;
    const TensorMap tensors = read_safetensors(dir / "model.safetensors").value();
    ASSERT_TRUE(write_safetensors(folder.path() / "model.safetensors", tensors));
    EXPECT_TRUE(read_file((folder.path() / "model.safetensors").string()).value() ==
                read_file((dir / "model.safetensors").string()).value())
        << name;
  }
}

TEST(Safetensors, AFailedWriteLeavesNothing) {
  const TemporaryFolder folder;
  const auto result = write_safetensors(folder.path() / "none" / "x.safetensors", {{"a", at::arange(5, at::kFloat)}});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().rule, "io.write");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace plait::test
