#include "model/checkpoint.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "expect_error.hpp"
#include "tiny_checkpoint.hpp"

namespace wisp::model {
namespace {

using test::expect_error;
using test::TinyCheckpoint;
namespace fs = std::filesystem;

constexpr const char* kShard2 = "model-00002-of-00003.safetensors";

class CheckpointTest : public testing::Test {
 protected:
  void expect_same(const std::string& folder) {
    const auto c = Checkpoint::open(folder);
    ASSERT_TRUE(c.ok()) << c.error().text;
    ASSERT_EQ(c->entries().size(), tiny_.tensors.size());
    for (const auto& [name, t] : tiny_.tensors) {
      const auto* e = c->find(name);
      ASSERT_NE(e, nullptr) << name;
      std::vector<std::uint8_t> got(e->info->bytes);
      ASSERT_TRUE(c->read(*e, 0, got).ok());
      EXPECT_EQ(got, t.data) << name;
    }
    EXPECT_EQ(c->find("nothing"), nullptr);
  }

  test::TempFolder temp_;
  TinyCheckpoint tiny_;
};

TEST_F(CheckpointTest, OneFileShardsAndShardsWithAnIndexReadAlike) {
  tiny_.write(temp_.path("one"));
  expect_same(temp_.path("one"));
  tiny_.write_sharded(temp_.path("shards"), 3, false);
  expect_same(temp_.path("shards"));
  tiny_.write_sharded(temp_.path("index"), 3, true);
  expect_same(temp_.path("index"));
  fs::rename(temp_.path("one/model.safetensors"), temp_.path("one/weights.safetensors"));
  expect_same(temp_.path("one"));
}

TEST_F(CheckpointTest, MissingShardIsNamed) {
  tiny_.write_sharded(temp_.path("a"), 3, true);
  fs::remove(temp_.path("a/") + kShard2);
  expect_error(Checkpoint::open(temp_.path("a")), {kShard2, "missing"});
  fs::remove(temp_.path("a/model.safetensors.index.json"));
  expect_error(Checkpoint::open(temp_.path("a")), {kShard2, "missing"});
}

TEST_F(CheckpointTest, TruncatedShardIsNamed) {
  tiny_.write_sharded(temp_.path("a"), 3, true);
  fs::resize_file(temp_.path("a/") + kShard2, fs::file_size(temp_.path("a/") + kShard2) - 1);
  expect_error(Checkpoint::open(temp_.path("a")), {kShard2, "truncated"});
}

TEST_F(CheckpointTest, StaleIndexNamesTensorAndFile) {
  tiny_.write_sharded(temp_.path("a"), 3, true);
  const std::string path = temp_.path("a/model.safetensors.index.json");
  const Json good = Json::parse(test::read_file(path));

  Json stale = good;
  stale["weight_map"]["model.layers.9.new.weight"] = kShard2;
  test::write_file(path, stale.dump());
  expect_error(Checkpoint::open(temp_.path("a")), {"stale index", "model.layers.9.new.weight", kShard2});

  stale = good;
  const std::string other =
      stale["weight_map"]["model.norm.weight"] == kShard2 ? "model-00001-of-00003.safetensors" : kShard2;
  stale["weight_map"]["model.norm.weight"] = other;
  test::write_file(path, stale.dump());
  expect_error(Checkpoint::open(temp_.path("a")), {"stale index", "model.norm.weight", other});

  stale = good;
  stale["weight_map"].erase("model.norm.weight");
  test::write_file(path, stale.dump());
  expect_error(Checkpoint::open(temp_.path("a")), {"stale index", "model.norm.weight", "not in the index"});

  stale = good;
  stale["weight_map"]["model.norm.weight"] = "../../etc/passwd";
  test::write_file(path, stale.dump());
  expect_error(Checkpoint::open(temp_.path("a")), {"model.norm.weight", "not a file name"});

  test::write_file(path, "{\"weight_map\": {}}");
  expect_error(Checkpoint::open(temp_.path("a")), {"names 0 shards"});
}

TEST_F(CheckpointTest, AmbiguousFoldersAreRefused) {
  tiny_.write_sharded(temp_.path("a"), 3, true);
  tiny_.write(temp_.path("a"));
  expect_error(Checkpoint::open(temp_.path("a")), {"model.safetensors", "stale"});
  fs::remove(temp_.path("a/model.safetensors.index.json"));
  expect_error(Checkpoint::open(temp_.path("a")), {"both model.safetensors and shards"});
  fs::remove(temp_.path("a/model.safetensors"));
  test::write_file(temp_.path("a/model-00001-of-00002.safetensors"), "");
  expect_error(Checkpoint::open(temp_.path("a")), {"two sets"});
}

TEST_F(CheckpointTest, TensorStoredTwiceIsNamedWithBothFiles) {
  tiny_.write_sharded(temp_.path("a"), 3, false);
  fs::copy_file(temp_.path("a/") + kShard2, temp_.path("a/model-00003-of-00003.safetensors"),
                fs::copy_options::overwrite_existing);
  expect_error(Checkpoint::open(temp_.path("a")),
               {"stored twice", kShard2, "model-00003-of-00003.safetensors"});
}

TEST_F(CheckpointTest, FoldersWithoutSafetensorsSayWhatTheyHold) {
  expect_error(Checkpoint::open(temp_.path("none")), {"no such folder"});
  fs::create_directories(temp_.path("empty"));
  expect_error(Checkpoint::open(temp_.path("empty")), {"holds no .safetensors"});
  test::write_file(temp_.path("empty/pytorch_model.bin"), "x");
  expect_error(Checkpoint::open(temp_.path("empty")), {"pytorch_model.bin", "convert it to safetensors"});
}

}  // namespace
}  // namespace wisp::model
