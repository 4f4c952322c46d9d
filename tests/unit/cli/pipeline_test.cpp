#include "services/cli/pipeline.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "services/cli/logits_file.hpp"
#include "services/cli/output_path.hpp"
#include "services/cli/recording.hpp"

namespace wisp::cli {
namespace {

namespace fs = std::filesystem;

class FolderTest : public testing::Test {
 protected:
  FolderTest() {
    std::string name = (fs::temp_directory_path() / "wisp-cli-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~FolderTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(FolderTest, LogitsMoveToTheirName) {
  const fs::path target = folder_ / "rows.f32";
  std::string made;
  {
    auto logits = LogitsFile::create(target.string());
    ASSERT_TRUE(logits.ok()) << logits.error().text;
    made = logits->folder();
    EXPECT_TRUE(fs::path(made).is_absolute());
    EXPECT_FALSE(logits->keep("12").ok());
    EXPECT_FALSE(logits->keep("").ok());
    std::ofstream(fs::path(made) / "12") << "rows";
    LogitsFile moved = std::move(*logits);
    EXPECT_TRUE(moved.keep("12").ok());
  }
  EXPECT_TRUE(fs::exists(target));
  EXPECT_FALSE(fs::exists(made));
}

TEST_F(FolderTest, LogitsOfRequestsGoToAnEmptyFolder) {
  const fs::path folder = folder_ / "rows", model = folder_ / "model";
  const std::vector<std::string> read{model.string()};
  fs::create_directory(model);
  {
    const auto made = logits_folder((folder / ".").string(), read);
    ASSERT_TRUE(made.ok()) << made.error().text;
    EXPECT_EQ(made->path, fs::canonical(folder).string());
    const auto second = logits_folder(folder.string(), read);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  }
  EXPECT_TRUE(logits_folder(folder.string(), read).ok()) << "it is there and empty";
  std::ofstream(folder / "4294967297") << "rows of another run";
  for (const fs::path& refused :
       {folder, folder / "4294967297", model, model / "rows", folder_ / "none" / "rows"})
    EXPECT_FALSE(logits_folder(refused.string(), read).ok()) << refused;
  EXPECT_TRUE(fs::is_empty(model));
}

TEST_F(FolderTest, FilesOfTheModelAreNotWrittenTo) {
  const fs::path model = folder_ / "model", stripe = folder_ / "stripe", link = folder_ / "link",
                 second = folder_ / "second";
  fs::create_directory(model);
  fs::create_directory(stripe);
  std::ofstream(model / "manifest.json") << "kept";
  fs::create_symlink(model / "manifest.json", link);
  fs::create_hard_link(model / "manifest.json", second);
  const std::vector<std::string> read{model.string() + "/", stripe.string()};
  for (const fs::path& file :
       {model / "manifest.json", model / "new", model / ".." / "stripe" / "x", link, second}) {
    const auto refused = output_path("--trace", file.string(), read);
    ASSERT_FALSE(refused.ok()) << file;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
    EXPECT_NE(refused.error().text.find("which the model is read from"), std::string::npos)
        << refused.error().text;
    EXPECT_FALSE(LogitsFile::create(file.string(), read).ok());
    EXPECT_FALSE(Recording::prepare("--trace", file.string(), read).ok());
  }
  EXPECT_EQ(fs::file_size(model / "manifest.json"), 4u);
  EXPECT_TRUE(output_path("--trace", (folder_ / "model-trace").string(), read).ok());
  EXPECT_FALSE(output_path("--trace", folder_.string(), read).ok()) << "a folder";
}

TEST_F(FolderTest, ARecordingThatNeverBeginsLeavesAnEarlierOne) {
  const fs::path file = folder_ / "t.csv";
  std::ofstream(file) << "earlier";
  {
    const auto recording = Recording::prepare("--trace", file.string(), {});
    ASSERT_TRUE(recording.ok()) << recording.error().text;
    EXPECT_EQ(recording->path(), file.string());
    EXPECT_EQ(fs::file_size(file), 7u);
  }
  EXPECT_EQ(fs::file_size(file), 7u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1)
      << "nothing beside it";
}

TEST_F(FolderTest, NoModelAtAll) {
  const auto model = open_model((folder_ / "none").string());
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().text.find("none"), std::string::npos);
}

TEST(OpenModel, CheckpointIsAnsweredWithItsCommand) {
  const std::string source = WISP_TEST_DATA "/pocket-dictionary";
  const auto model = open_model(source);
  ASSERT_FALSE(model.ok());
  const std::string& text = model.error().text;
  EXPECT_NE(text.find("wisp convert " + source + " " + source + "-wisp"), std::string::npos) << text;
  EXPECT_NE(text.find("MB"), std::string::npos) << text;
  EXPECT_NE(text.find("free"), std::string::npos) << text;
}

int run_wisp_flags(std::vector<std::string> args) {
  CLI::App app;
  PipelineFlags flags;
  Sampling sampling;
  CLI::App* c = app.add_subcommand("x");
  add_pipeline_flags(*c, flags);
  add_sampling_flags(*c, sampling);
  try {
    std::reverse(args.begin(), args.end());
    app.parse(args);
  } catch (const CLI::ParseError& e) {
    return e.get_exit_code();
  }
  EXPECT_EQ(flags.options.model, "m");
  EXPECT_EQ(flags.options.log_level, "warn");
  EXPECT_EQ(flags.ram, "62M");
  EXPECT_EQ(sampling.temperature, 0.0);
  EXPECT_EQ(sampling.seed, 18446744073709551615u);
  EXPECT_FALSE(sampling.top_k.has_value());
  return 0;
}

TEST(Flags, ParseAndRefuse) {
  EXPECT_EQ(run_wisp_flags({"x", "m", "--ram", "62M", "--temp", "0", "--seed", "18446744073709551615"}), 0);
  EXPECT_NE(run_wisp_flags({"x", "m", "--topology", "ring"}), 0);
  EXPECT_NE(run_wisp_flags({"x", "m", "--io", "tape"}), 0);
  EXPECT_NE(run_wisp_flags({"x"}), 0);
}

}  // namespace
}  // namespace wisp::cli
