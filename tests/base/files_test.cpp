#include "plait/base/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <set>
#include <string>

namespace plait {
namespace {

namespace fs = std::filesystem;

class FilesTest : public testing::Test {
 protected:
  FilesTest() {
    std::string name = (fs::temp_directory_path() / "plait-files-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~FilesTest() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return (fs::path(folder_) / name).string(); }
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.insert(entry.path().filename().string());
    return found;
  }

 private:
  std::string folder_;
};

TEST_F(FilesTest, ReadsBackWhatWasWritten) {
  const std::string bytes = std::string("a\0b\r\n", 5) + std::string(200'000, 'x');
  ASSERT_TRUE(write_file(path("data"), bytes));
  EXPECT_EQ(*read_file(path("data")), bytes);
  EXPECT_EQ(names(), std::set<std::string>{"data"});
}

TEST_F(FilesTest, ReplacesAsAWhole) {
  ASSERT_TRUE(write_file(path("data"), "old"));
  {
    auto file = AtomicFile::create(path("data"));
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write("new, but "));
    EXPECT_EQ(*read_file(path("data")), "old") << "visible before it is whole";
    ASSERT_TRUE(file->write("longer"));
    ASSERT_TRUE(file->commit());
  }
  EXPECT_EQ(*read_file(path("data")), "new, but longer");
}

TEST_F(FilesTest, LeavesNothingBehindUnlessCommitted) {
  ASSERT_TRUE(write_file(path("data"), "old"));
  {
    auto file = AtomicFile::create(path("data"));
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write("half of it"));
  }
  EXPECT_EQ(*read_file(path("data")), "old");
  EXPECT_EQ(names(), std::set<std::string>{"data"});
}

/// A file size limit stands for a full disk: write() fails with what was written so far on the disk.
TEST_F(FilesTest, AFullDiskIsAnErrorAndLeavesTheOldFile) {
  ASSERT_TRUE(write_file(path("data"), "old"));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto result = write_file(path("data"), std::string(100'000, 'x'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  (void)std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kIo);
  EXPECT_EQ(result.error().rule, "io.write");
  EXPECT_EQ(*read_file(path("data")), "old");
  EXPECT_EQ(names(), std::set<std::string>{"data"});
}

TEST_F(FilesTest, SaysWhichFileAndWhy) {
  const auto missing = read_file(path("nothing"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().rule, "io.read");
  EXPECT_EQ(missing.error().message, path("nothing") + ": cannot be read: No such file or directory");
  EXPECT_FALSE(read_file(path("")));
  const auto nowhere = write_file(path("no/such/folder"), "x");
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace plait
