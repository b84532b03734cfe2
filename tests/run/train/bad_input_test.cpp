#include "run_command.h"
#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace plait::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Words = std::vector<std::string>;

/// Writes a trained tiny model (one step) and some text once for a test.
class BadInput : public testing::Test {
 protected:
  void SetUp() override { spill(text_, sample_text(3000)); }

  /// The command must end with this code and one clear message, and leave no output folder.
  void expect_refused(const Words& words, int code, const std::vector<std::string>& said) const {
    const fs::path out = folder_ / "out";
    const CommandResult result = run_command(tiny_run(text_, out) + Words{"--steps", "2"} + words);
    EXPECT_EQ(result.exit_code, code) << result.err;
    for (const std::string& word : said) EXPECT_THAT(result.err, HasSubstr(word));
    EXPECT_FALSE(fs::exists(out)) << "left behind by " << testing::PrintToString(words);
  }

  fs::path trained_model() const {
    const fs::path run = folder_ / "model";
    const CommandResult result = run_command(tiny_run(text_, run) + Words{"--steps", "1"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return run / "checkpoints" / "step-000001";
  }

  /// The same as a plain Hugging Face directory, without manifest and state.
  fs::path model_directory() const {
    const fs::path source = trained_model();
    const fs::path model = folder_ / "hf";
    fs::create_directories(model);
    for (const char* file : {"config.json", "model.safetensors"}) fs::copy_file(source / file, model / file);
    return model;
  }

  /// --init-from does not go with the size flags of tiny_run.
  void expect_model_refused(const fs::path& model, const std::vector<std::string>& said) const {
    const fs::path out = folder_ / "out";
    const CommandResult result = run_command({"train", "--init-from", model.string(), "--text", text_.string(), "--seq",
                                              "16", "--out", out.string(), "--steps", "2"});
    EXPECT_EQ(result.exit_code, 3) << result.err;
    for (const std::string& word : said) EXPECT_THAT(result.err, HasSubstr(word));
    EXPECT_FALSE(fs::exists(out));
  }

  const TestFolder folder_;
  const fs::path text_ = folder_ / "text";
};

TEST_F(BadInput, TextThatIsMissingEmptyOrShort) {
  expect_refused({"--text", (folder_ / "nowhere").string()}, 3, {"nowhere", "io.read"});
  spill(folder_ / "empty", "");
  expect_refused({"--text", (folder_ / "empty").string()}, 3, {"the file is empty"});
  spill(folder_ / "short", "0123456789abcdef");
  expect_refused({"--text", (folder_ / "short").string()}, 3, {"16 tokens, but one sequence of --seq 16 takes 17"});
}

TEST_F(BadInput, TokenIdsBeyondTheVocabulary) {
  spill(folder_ / "rows.json", R"({"tokens": [[1, 2, 3], [4, 5, 300]]})");
  const CommandResult result = run_command({"train", "--tokens", (folder_ / "rows.json").string(), "--vocab", "256",
                                            "--hidden", "16", "--heads", "2", "--out", (folder_ / "out").string()});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("row 1, token 2 has id 300, but the model's vocabulary ends at 255"));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  std::string ids(200, '\0');
  ids[101] = '\x01';  // 256 in place 50
  spill(folder_ / "ids.bin", ids);
  const CommandResult bin = run_command({"train", "--bin", (folder_ / "ids.bin").string(), "--seq", "8", "--vocab",
                                         "256", "--hidden", "16", "--heads", "2", "--out", (folder_ / "out").string()});
  EXPECT_EQ(bin.exit_code, 3);
  EXPECT_THAT(bin.err, HasSubstr("ids.bin: token 50, at byte 100, has id 256"));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(BadInput, NanInAModelIsRefusedByName) {
  const fs::path model = model_directory();
  std::string bytes = slurp(model / "model.safetensors");
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  const auto header = nlohmann::json::parse(bytes.substr(8, header_size));
  const std::string name = "model.layers.2.mlp.down_proj.weight";
  const auto begin = header.at(name).at("data_offsets").at(0).get<std::uint64_t>();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + 8 + header_size + begin + 4, &nan, sizeof nan);
  spill(model / "model.safetensors", bytes);
  expect_model_refused(model, {name, "NaN"});
  const CommandResult result = run_command({"generate", "--model", model.string(), "--prompt", "a"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr(name));
}

TEST_F(BadInput, DamagedSafetensors) {
  const fs::path model = model_directory();
  const std::string bytes = slurp(model / "model.safetensors");
  spill(model / "model.safetensors", bytes.substr(0, bytes.size() / 2));
  expect_model_refused(model, {"model.safetensors"});
  spill(model / "model.safetensors", bytes.substr(0, 5));
  expect_model_refused(model, {"model.safetensors"});
  std::string huge = bytes;
  const std::uint64_t header_size = std::uint64_t{1} << 60U;
  std::memcpy(huge.data(), &header_size, sizeof header_size);
  spill(model / "model.safetensors", huge);
  expect_model_refused(model, {"model.safetensors", "1152921504606846976"});
  fs::remove(model / "model.safetensors");
  expect_model_refused(model, {"model.safetensors"});
}

TEST_F(BadInput, RefusedFlags) {
  expect_refused({"--stepps", "3"}, 2, {"--stepps"});
  expect_refused({"--steps", "many"}, 2, {"--steps"});
  expect_refused({"--steps", "0"}, 2, {"--steps 0"});
  expect_refused({"--ranks", "0"}, 2, {"rank"});
  expect_refused({"--ranks", "5"}, 2, {"layer"});
  expect_refused({"--ranks", "-1"}, 2, {"rank"});
  expect_refused({"--microbatches", "0"}, 2, {"micro"});
  expect_refused({"--microbatch-size", "-1"}, 2, {"--microbatch-size"});
  expect_refused({"--schedule", "nonesuch"}, 2, {"nonesuch"});
  expect_refused({"--dtype", "fp8"}, 2, {"--dtype"});
  expect_refused({"--device", "tpu"}, 2, {"--device"});
  expect_refused({"--device", "cuda", "--processes", "2"}, 2, {"without NCCL", "-DPLAIT_WITH_CUDA=ON", "nccl.missing"});
  expect_refused({"--compare", "nonesuch"}, 2, {"nonesuch"});
  expect_refused({"--document-end", "999"}, 2, {"--document-end 999", "256 entries"});
  expect_refused({"--document-end", "10", "--schedule", "seq1f1b", "--slices", "2"}, 2, {"seq1f1b", "2 slices"});
  expect_refused({"--document-end", "10", "--compare", "seq1f1b"}, 2, {"seq1f1b", "slices"});
  expect_refused({"--clip", "0"}, 2, {"--clip"});
  expect_refused({"--mlp-chunk", "-1"}, 2, {"--mlp-chunk -1"});
  expect_refused({"--loss-chunk", "-1"}, 2, {"--loss-chunk -1"});
  expect_refused({"--recompute", "some"}, 2, {"--recompute"});
  expect_refused({"--val-fraction", "1"}, 2, {"--val-fraction"});
  expect_refused({"--heads", "3"}, 2, {"--heads 3"});
  expect_refused({"--max-positions", "8"}, 2, {"positions"});
  expect_refused({"--spm", "m", "--bin", "f", "--text", ""}, 2, {"--spm"});
  expect_refused({"extra"}, 2, {"extra"});
  const CommandResult unknown = run_command({"frobnicate"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("frobnicate"));
}

TEST_F(BadInput, WithoutAGpuCudaIsRefusedInOneLine) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", /*overwrite=*/1);  // where there is one
  expect_refused({"--device", "cuda"}, 2, {"[device.missing]", "--device cpu"});
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(BadInput, AFullDiskLeavesNoPartialCheckpoint) {
  // program.plait and metrics.jsonl fit 40 kB, the weights of 34 k parameters do not.
  const fs::path out = folder_ / "out";
  const CommandResult result = run_command_on_small_disk(
      tiny_run(text_, out) + Words{"--steps", "3", "--hidden", "32", "--checkpoint-every", "1"}, 40000);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("the checkpoint of step 1 could not be written"));
  EXPECT_FALSE(fs::exists(out / "checkpoints"));
  // Where not even the program fits, nothing is left at all.
  const CommandResult nothing = run_command_on_small_disk(tiny_run(text_, folder_ / "none"), 100);
  EXPECT_EQ(nothing.exit_code, 3);
  EXPECT_THAT(nothing.err, HasSubstr("program.plait"));
  EXPECT_FALSE(fs::exists(folder_ / "none"));
}

TEST_F(BadInput, ALossThatIsNotFiniteEndsTheRun) {
  const fs::path out = folder_ / "out";
  const CommandResult result =
      run_command(tiny_run(text_, out) + Words{"--steps", "50", "--lr", "1e30", "--clip", "none", "--warmup", "0"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("train.diverged"));
  EXPECT_FALSE(fs::exists(out / "checkpoints"));
}

}  // namespace
}  // namespace plait::test
