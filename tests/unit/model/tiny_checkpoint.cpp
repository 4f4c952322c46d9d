#include "tiny_checkpoint.hpp"

#include <unistd.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>

#include "model/safetensors.hpp"

namespace wisp::model::test {

TempFolder::TempFolder() {
  std::string pattern = std::filesystem::temp_directory_path().string() + "/wisp model XXXXXX";
  const char* made = ::mkdtemp(pattern.data());
  WISP_CHECK(made != nullptr);
  root_ = made;
}

TempFolder::~TempFolder() {
  std::error_code ec;
  std::filesystem::remove_all(root_, ec);
}

std::string oracle_checkpoint(const TempFolder& temp, const std::string& name) {
  const std::string copy = temp.path(name);
  std::filesystem::create_directory(copy);
  for (const auto& f : std::filesystem::directory_iterator(std::string(WISP_TEST_DATA) + "/oracle/" + name))
    if (!f.path().filename().string().starts_with("expected"))
      std::filesystem::copy(f.path(), copy + "/" + f.path().filename().string());
  return copy;
}

void write_file(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  WISP_CHECK(out.good());
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string raw_safetensors(const std::string& header, std::size_t data) {
  std::string out(8, '\0');
  const std::uint64_t n = header.size();
  std::memcpy(out.data(), &n, 8);
  return out + header + std::string(data, '\0');
}

std::string safetensors_bytes(const std::map<std::string, TinyTensor>& tensors) {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, t] : tensors) {
    header[name] = {
        {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {data.size(), data.size() + t.data.size()}}};
    data.append(reinterpret_cast<const char*>(t.data.data()), t.data.size());
  }
  return raw_safetensors(header.dump(), 0) + data;
}

std::map<std::string, TinyTensor> read_tensors(const std::string& path) {
  auto file = SafetensorsFile::open(path);
  WISP_CHECK(file.ok());
  std::map<std::string, TinyTensor> out;
  for (const TensorInfo& t : file->header().tensors) {
    TinyTensor& to = out[t.name];
    to.dtype = name_of(t.dtype);
    to.shape.assign(t.shape.begin(), t.shape.end());
    to.data.resize(t.bytes);
    WISP_CHECK(file->read(t, 0, to.data).ok());
  }
  return out;
}

std::uint32_t TinyCheckpoint::next() {
  state_ = state_ * 6364136223846793005u + 1442695040888963407u;
  return static_cast<std::uint32_t>(state_ >> 33);
}

void TinyCheckpoint::add(const std::string& name, const std::string& dtype,
                         const std::vector<std::uint64_t>& shape) {
  TinyTensor t{dtype, shape, {}};
  std::uint64_t n = 1;
  for (const auto d : shape) n *= d;
  const std::size_t size = dtype == "F32" ? 4 : 2;
  t.data.resize(n * size);
  for (std::uint64_t i = 0; i < n; ++i) {
    // Random sign and mantissa, exponent near 1/16: finite in every format.
    std::uint32_t bits = next();
    if (dtype == "F32") bits = (bits & 0x807fffffu) | 0x3d800000u;
    if (dtype == "BF16") bits = (bits & 0x807fu) | 0x3d80u;
    if (dtype == "F16") bits = (bits & 0x83ffu) | 0x2c00u;
    std::memcpy(t.data.data() + i * size, &bits, size);
  }
  tensors[name] = std::move(t);
}

void TinyCheckpoint::add_packed(const std::string& module, std::uint64_t rows, std::uint64_t cols,
                                std::uint64_t group) {
  TinyTensor words{"I32", {rows, cols / 8}, std::vector<std::uint8_t>(rows * cols / 2)};
  for (auto& b : words.data) b = static_cast<std::uint8_t>(next());
  tensors[module + ".weight_packed"] = std::move(words);
  add(module + ".weight_scale", "BF16", {rows, cols / group});
  TinyTensor shape{"I64", {2}, std::vector<std::uint8_t>(16)};
  std::memcpy(shape.data.data(), &rows, 8);
  std::memcpy(shape.data.data() + 8, &cols, 8);
  tensors[module + ".weight_shape"] = std::move(shape);
}

TinyCheckpoint::TinyCheckpoint(Experts experts) {
  constexpr std::uint64_t kHidden = 64, kWidth = 32, kVocab = 40, kExperts = 4;
  config = {{"architectures", {"Qwen3MoeForCausalLM"}},
            {"model_type", "qwen3_moe"},
            {"hidden_size", kHidden},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"head_dim", 16},
            {"intermediate_size", 48},
            {"moe_intermediate_size", kWidth},
            {"num_experts", kExperts},
            {"num_experts_per_tok", 2},
            {"norm_topk_prob", true},
            {"vocab_size", kVocab},
            {"max_position_embeddings", 128},
            {"rms_norm_eps", 1e-6},
            {"rope_theta", 10000.0},
            {"hidden_act", "silu"},
            {"torch_dtype", "bfloat16"},
            {"tie_word_embeddings", false},
            {"eos_token_id", 3}};
  generation = {
      {"eos_token_id", {3, 4}}, {"do_sample", true}, {"temperature", 0.7}, {"top_k", 20}, {"top_p", 0.8}};
  if (experts == Experts::kInt4) {
    config["quantization_config"] = Json::parse(R"({
      "quant_method": "compressed-tensors", "format": "pack-quantized",
      "ignore": ["lm_head", "re:.*self_attn.*"],
      "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
        "group_size": 32, "actorder": null}}}})");
  }
  add("model.embed_tokens.weight", "BF16", {kVocab, kHidden});
  add("model.norm.weight", "BF16", {kHidden});
  add("lm_head.weight", "BF16", {kVocab, kHidden});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    add(layer + "input_layernorm.weight", "BF16", {kHidden});
    add(layer + "post_attention_layernorm.weight", "BF16", {kHidden});
    add(layer + "self_attn.q_proj.weight", "BF16", {32, kHidden});
    add(layer + "self_attn.k_proj.weight", "BF16", {16, kHidden});
    add(layer + "self_attn.v_proj.weight", "BF16", {16, kHidden});
    add(layer + "self_attn.o_proj.weight", "BF16", {kHidden, 32});
    add(layer + "self_attn.q_norm.weight", "BF16", {16});
    add(layer + "self_attn.k_norm.weight", "F32", {16});
    add(layer + "mlp.gate.weight", "F32", {kExperts, kHidden});
    if (experts == Experts::kFused) {
      add(layer + "mlp.experts.gate_up_proj", "BF16", {kExperts, 2 * kWidth, kHidden});
      add(layer + "mlp.experts.down_proj", "BF16", {kExperts, kHidden, kWidth});
      continue;
    }
    const std::string dtype = experts == Experts::kF16 ? "F16" : experts == Experts::kF32 ? "F32" : "BF16";
    for (std::uint64_t e = 0; e < kExperts; ++e) {
      const std::string expert = layer + "mlp.experts." + std::to_string(e) + ".";
      for (const std::string part : {"gate_proj", "up_proj", "down_proj"}) {
        const std::uint64_t rows = part == "down_proj" ? kHidden : kWidth,
                            cols = part == "down_proj" ? kWidth : kHidden;
        if (experts == Experts::kInt4)
          add_packed(expert + part, rows, cols, 32);
        else
          add(expert + part + ".weight", dtype, {rows, cols});
      }
    }
  }
}

void TinyCheckpoint::write_texts(const std::string& folder) const {
  std::filesystem::create_directories(folder);
  write_file(folder + "/config.json", config.dump());
  if (!generation.is_null()) write_file(folder + "/generation_config.json", generation.dump());
}

void TinyCheckpoint::write(const std::string& folder) const {
  write_texts(folder);
  write_file(folder + "/model.safetensors", safetensors_bytes(tensors));
}

void TinyCheckpoint::write_sharded(const std::string& folder, std::uint32_t shards, bool index) const {
  write_texts(folder);
  std::vector<std::map<std::string, TinyTensor>> parts(shards);
  Json map = Json::object();
  std::size_t i = 0;
  for (const auto& [name, t] : tensors) {
    const std::size_t s = i++ % shards;
    parts[s][name] = t;
    char file[64];
    std::snprintf(file, sizeof file, "model-%05zu-of-%05u.safetensors", s + 1, shards);
    map[name] = file;
  }
  for (std::size_t s = 0; s < parts.size(); ++s) {
    char file[64];
    std::snprintf(file, sizeof file, "/model-%05zu-of-%05u.safetensors", s + 1, shards);
    write_file(folder + file, safetensors_bytes(parts[s]));
  }
  if (index) {
    write_file(folder + "/model.safetensors.index.json",
               Json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  }
}

}  // namespace wisp::model::test
