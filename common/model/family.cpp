#include "model/family.hpp"

#include <array>
#include <charconv>

namespace wisp::model {
namespace {

struct Suffix {
  std::string_view text;
  TensorName::Kind kind;
};
constexpr std::array<Suffix, 11> kSuffixes{{
    {".weight", TensorName::Kind::kWeight},
    {".bias", TensorName::Kind::kBias},
    {".weight_packed", TensorName::Kind::kPacked},
    {".weight_scale", TensorName::Kind::kScale},
    {".weight_shape", TensorName::Kind::kShape},
    {".weight_zero_point", TensorName::Kind::kZeroPoint},
    {".weight_scale_inv", TensorName::Kind::kScaleInv},
    {".qweight", TensorName::Kind::kQWeight},
    {".qzeros", TensorName::Kind::kQZeros},
    {".scales", TensorName::Kind::kQScales},
    {".g_idx", TensorName::Kind::kGroupIndex},
}};

/// Takes a decimal number without leading zeros off the front of `text`.
bool take_number(std::string_view& text, std::uint32_t& out) {
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
  const auto n = static_cast<std::size_t>(end - text.data());
  if (ec != std::errc() || (text[0] == '0' && n > 1)) return false;
  text.remove_prefix(n);
  return true;
}

bool match(std::string_view pattern, std::string_view text, std::uint32_t& layer, std::uint32_t& expert) {
  while (!pattern.empty()) {
    if (pattern.starts_with("{L}") || pattern.starts_with("{E}")) {
      if (!take_number(text, pattern[1] == 'L' ? layer : expert)) return false;
      pattern.remove_prefix(3);
    } else {
      if (text.empty() || text[0] != pattern[0]) return false;
      pattern.remove_prefix(1);
      text.remove_prefix(1);
    }
  }
  return text.empty();
}

}  // namespace

std::span<const Family* const> families() {
  static const std::array kAll{&deepseek_v3_family(),   &deepseek_v32_family(), &glm4_moe_family(),
                               &glm4_moe_lite_family(), &glm_moe_dsa_family(),  &gpt_oss_family(),
                               &kimi_k2_family(),       &llama_family(),        &mistral_family(),
                               &mixtral_family(),       &olmoe_family(),        &qwen2_moe_family(),
                               &qwen3_family(),         &qwen3_moe_family()};
  return kAll;
}

const Family* find_family(std::string_view model_type) {
  for (const Family* f : families()) {
    if (f->model_type == model_type) return f;
  }
  return nullptr;
}

TensorName split_name(std::string_view tensor) {
  for (const auto& s : kSuffixes) {
    if (tensor.ends_with(s.text)) {
      return {std::string(tensor.substr(0, tensor.size() - s.text.size())), s.kind};
    }
  }
  return {std::string(tensor), TensorName::Kind::kOther};
}

std::optional<NameMatch> match_name(const Family& f, std::string_view module, bool draft_head) {
  const auto find = [&](std::span<const NameRule> table) -> std::optional<NameMatch> {
    for (const auto& rule : table) {
      NameMatch m{&rule, 0, 0};
      if (match(rule.source, module, m.layer, m.expert)) return m;
    }
    return std::nullopt;
  };
  for (const auto table : f.names)
    if (const auto m = find(table)) return m;
  return draft_head ? find(f.draft_head) : std::nullopt;
}

std::string fill_name(std::string_view text, std::uint32_t layer, std::uint32_t expert) {
  std::string out;
  while (!text.empty()) {
    if (text.starts_with("{L}") || text.starts_with("{E}")) {
      out += std::to_string(text[1] == 'L' ? layer : expert);
      text.remove_prefix(3);
    } else {
      out.push_back(text[0]);
      text.remove_prefix(1);
    }
  }
  return out;
}

std::string source_of(const Family& f, std::string_view canonical, std::optional<std::uint32_t> draft_layer) {
  const bool bias = canonical.ends_with(".bias");
  const std::string_view base = canonical.substr(0, canonical.size() - (bias ? 5 : 0));
  const auto find = [&](std::span<const NameRule> table) -> std::string {
    for (const auto& rule : table) {
      std::uint32_t layer = 0, expert = 0;
      if (rule.role != Role::kDense || !match(rule.canonical, base, layer, expert)) continue;
      return fill_name(rule.source, draft_layer.value_or(layer)) + (bias        ? ".bias"
                                                                    : rule.bare ? ""
                                                                                : ".weight");
    }
    return {};
  };
  std::string out = draft_layer ? find(f.draft_head) : "";
  for (const auto table : f.names)
    if (out.empty()) out = find(table);
  return out.empty() ? std::string(canonical) : out;
}

}  // namespace wisp::model
