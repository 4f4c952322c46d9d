#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>

#include "model/convert.hpp"
#include "tiny_checkpoint.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WISP_SHADOWED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WISP_SHADOWED 1
#endif
#endif

/// Memory that a conversion takes: an expert and a few groups of rows, however large the model.
namespace wisp::model {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// A checkpoint of 208 MiB, all zeros, in a sparse file: two matrices of 64 MiB and 16 experts of 5 MiB.
void write_large(const std::string& folder) {
  test::TinyCheckpoint tiny;
  const std::uint64_t vocab = 65536, hidden = 512, width = 1707, experts = 8;
  tiny.config["vocab_size"] = vocab;
  tiny.config["hidden_size"] = hidden;
  tiny.config["moe_intermediate_size"] = width;
  tiny.config["num_experts"] = experts;
  Json header = Json::object();
  std::uint64_t at = 0;
  const auto add = [&](const std::string& name, const std::vector<std::uint64_t>& shape) {
    std::uint64_t bytes = 2;
    for (const std::uint64_t n : shape) bytes *= n;
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  };
  add("model.embed_tokens.weight", {vocab, hidden});
  add("lm_head.weight", {vocab, hidden});
  add("model.norm.weight", {hidden});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    add(layer + "input_layernorm.weight", {hidden});
    add(layer + "post_attention_layernorm.weight", {hidden});
    add(layer + "self_attn.q_proj.weight", {32, hidden});
    add(layer + "self_attn.k_proj.weight", {16, hidden});
    add(layer + "self_attn.v_proj.weight", {16, hidden});
    add(layer + "self_attn.o_proj.weight", {hidden, 32});
    add(layer + "self_attn.q_norm.weight", {16});
    add(layer + "self_attn.k_norm.weight", {16});
    add(layer + "mlp.gate.weight", {experts, hidden});
    for (std::uint64_t e = 0; e < experts; ++e) {
      const std::string expert = layer + "mlp.experts." + std::to_string(e) + ".";
      add(expert + "gate_proj.weight", {width, hidden});
      add(expert + "up_proj.weight", {width, hidden});
      add(expert + "down_proj.weight", {hidden, width});
    }
  }
  fs::create_directories(folder);
  test::write_file(folder + "/config.json", tiny.config.dump());
  const std::string file = folder + "/model.safetensors";
  test::write_file(file, test::raw_safetensors(header.dump(), 0));
  fs::resize_file(file, fs::file_size(file) + at);
}

/// A line of /proc/self/status, in bytes.
std::uint64_t status_bytes(const std::string& key) {
  const std::string text = test::read_file("/proc/self/status");
  const auto digits = text.find_first_of("0123456789", text.find("\n" + key + ":"));
  std::uint64_t kib = 0;
  std::from_chars(text.data() + digits, text.data() + text.size(), kib);
  return kib * 1024;
}

/// How far the resident memory of a process that converts rises, at its peak.
std::uint64_t rise_of(const ConvertOptions& options) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::uint64_t before = status_bytes("VmRSS");
    test::write_file("/proc/self/clear_refs", "5");  // the peak begins here
    const bool ok = convert(options, {}).ok();
    const std::uint64_t rise = ok ? status_bytes("VmHWM") - before : ~std::uint64_t{0};
    ::_exit(::write(ends[1], &rise, sizeof rise) == sizeof rise ? 0 : 1);
  }
  ::close(ends[1]);
  std::uint64_t rise = ~std::uint64_t{0};
  EXPECT_EQ(::read(ends[0], &rise, sizeof rise), static_cast<ssize_t>(sizeof rise));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return rise;
}

TEST(ConvertMemory, DoesNotGrowWithTheModel) {
#ifdef WISP_SHADOWED
  GTEST_SKIP() << "a sanitizer's shadow counts as memory";
#endif
  test::TempFolder temp;
  write_large(temp.path("src"));
  for (const TargetFormats target :
       {TargetFormats{}, TargetFormats{kernels::WeightFormat::kInt4, kernels::WeightFormat::kInt8}}) {
    const std::uint64_t rise = rise_of({temp.path("src"), temp.path("out"), false, {}, target});
    EXPECT_LT(rise, 64 * kMiB) << rise / kMiB << " MiB";
    EXPECT_TRUE(fs::exists(temp.path("out/manifest.json")));
    fs::remove_all(temp.path("out"));
  }
}

}  // namespace
}  // namespace wisp::model
