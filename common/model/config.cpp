#include "model/config.hpp"

#include <algorithm>
#include <set>

#include "model/family.hpp"
#include "model/limits.hpp"

namespace wisp::model {
namespace {

constexpr std::string_view kFile = "config.json";

Status read_identity(const Fields& root, Config& c) {
  const Fields text = c.fields();
  WISP_ASSIGN(c.model_type, text.text("model_type"));
  if (root.has("architectures")) {
    WISP_ASSIGN(const Json* list, root.array("architectures"));
    if (!list->empty() && (*list)[0].is_string()) c.architecture = (*list)[0].get<std::string>();
  }
  c.family = find_family(c.model_type);
  const bool known = c.family && (c.architecture.empty() ||
                                  std::find(c.family->architectures.begin(), c.family->architectures.end(),
                                            c.architecture) != c.family->architectures.end());
  if (known) return {};
  std::set<std::string_view> known_ones;
  for (const Family* f : families()) known_ones.insert(f->architectures.begin(), f->architectures.end());
  std::string names;
  for (const auto a : known_ones) names += (names.empty() ? "" : ", ") + std::string(a);
  return unsupported(std::string(kFile) + ": architecture " +
                     (c.architecture.empty() ? std::string("(none given)") : printable(c.architecture)) +
                     " with model_type " + printable(c.model_type) +
                     " is not supported; supported: " + names);
}

Status read_activation(const Config& c) {
  const Fields f = c.fields();
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    WISP_ASSIGN(const std::string act, f.text_or(key, "silu"));
    if (act != "silu" && act != "swish") {
      return unsupported(c.where + ": " + key + " " + printable(act) + " is not supported; supported: silu");
    }
  }
  return {};
}

Status read_shared_numbers(Config& c) {
  const Fields f = c.fields();
  WISP_ASSIGN(c.hidden, f.u32("hidden_size", 1, kMaxWidth));
  WISP_ASSIGN(c.layers, f.u32("num_hidden_layers", 1, kMaxLayers));
  WISP_ASSIGN(c.vocab, f.u32("vocab_size", 1, kMaxVocab));
  WISP_ASSIGN(c.max_positions, f.u32("max_position_embeddings", 1, kMaxPositions));
  WISP_ASSIGN(c.norm_eps, f.number_or("rms_norm_eps", 1e-6, 0.0, 1.0));
  WISP_ASSIGN(c.prediction_layers, f.u32_or("num_nextn_predict_layers", 0, 0, kMaxLayers));
  WISP_ASSIGN(c.heads, f.u32("num_attention_heads", 1, kMaxHeads));
  WISP_ASSIGN(c.kv_heads, f.u32_or("num_key_value_heads", c.heads, 1, kMaxHeads));
  if (c.heads % c.kv_heads != 0) {
    return f.wrong(
        "num_attention_heads",
        std::to_string(c.heads) + " is not a multiple of num_key_value_heads " + std::to_string(c.kv_heads));
  }
  if (c.family->latent) return read_activation(c);
  if (!f.has("head_dim") && c.hidden % c.heads != 0) {
    return f.wrong("hidden_size", std::to_string(c.hidden) + " is not a multiple of num_attention_heads " +
                                      std::to_string(c.heads) + ", and head_dim is missing");
  }
  WISP_ASSIGN(c.head_dim, f.u32_or("head_dim", c.hidden / c.heads, 1, kMaxHeadDim));
  if (c.head_dim % 2 != 0 || c.head_dim > kMaxHeadDim) {
    return f.wrong("head_dim", "is " + std::to_string(c.head_dim) + "; it must be even and at most " +
                                   std::to_string(kMaxHeadDim));
  }
  return read_activation(c);
}

Status read_stop_ids(const Fields& f, const Config& c, std::vector<std::uint32_t>& out) {
  const Json* v = f.find("eos_token_id");
  if (!v) return {};
  const Json list = v->is_array() ? *v : Json::array({*v});
  if (list.size() > kMaxStopIds)
    return f.wrong("eos_token_id", "has " + std::to_string(list.size()) + " entries");
  for (const auto& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= c.vocab) {
      return f.wrong("eos_token_id",
                     "is " + printable(id.dump()) + ", but vocab_size is " + std::to_string(c.vocab));
    }
    out.push_back(id.get<std::uint32_t>());
  }
  return {};
}

/// Keys that are absent stay off: a publisher who wants top-k 50 writes it.
Status read_generation(const Json& json, Config& c) {
  const Fields f(json, "generation_config.json");
  auto& g = c.generation;
  WISP_ASSIGN(g.sample, f.boolean_or("do_sample", false));
  WISP_ASSIGN(const double temperature, f.number_or("temperature", 1.0, 0.0, 100.0));
  WISP_ASSIGN(g.top_k, f.u32_or("top_k", 0, 0, kMaxVocab));
  WISP_ASSIGN(const double top_p, f.number_or("top_p", 1.0, 0.0, 1.0));
  WISP_ASSIGN(const double min_p, f.number_or("min_p", 0.0, 0.0, 1.0));
  WISP_ASSIGN(const double repetition,
              f.number_or("repetition_penalty", 1.0, kLeastRepetitionPenalty, kMostRepetitionPenalty));
  g.repetition_penalty = static_cast<float>(repetition);
  g.temperature = static_cast<float>(temperature);
  g.top_p = top_p == 0.0 ? 1.0f : static_cast<float>(top_p);  // 0 would leave no token
  g.min_p = static_cast<float>(min_p);
  if (temperature == 0.0) {
    g.sample = false;
    g.temperature = 1.0f;
  }
  return read_stop_ids(f, c, g.eos);
}

Result<YarnSpec> read_yarn(const Fields& f, std::uint32_t max_positions) {
  YarnSpec y;
  WISP_ASSIGN(y.original_length,
              f.number_or("original_max_position_embeddings", max_positions, 1.0, kMaxPositions));
  WISP_ASSIGN(y.factor, f.number_or("factor", max_positions / y.original_length, 1e-3, 1e6));
  WISP_ASSIGN(y.beta_fast, f.number_or("beta_fast", 0.0, 0.0, 1e6));
  WISP_ASSIGN(y.beta_slow, f.number_or("beta_slow", 0.0, 0.0, 1e6));
  if (y.beta_fast == 0.0) y.beta_fast = 32.0;
  if (y.beta_slow == 0.0) y.beta_slow = 1.0;
  WISP_ASSIGN(y.mscale, f.number_or("mscale", 0.0, 0.0, 1e3));
  WISP_ASSIGN(y.mscale_all_dim, f.number_or("mscale_all_dim", 0.0, 0.0, 1e3));
  WISP_ASSIGN(y.attention_factor, f.number_or("attention_factor", 0.0, 0.0, 1e3));
  WISP_ASSIGN(y.truncate, f.boolean_or("truncate", true));
  return y;
}

/// No key may be missing: no release leaves one out.
Result<Llama3Spec> read_llama3(const Fields& f) {
  Llama3Spec l;
  WISP_ASSIGN(l.factor, f.number("factor", 1e-3, 1e6));
  WISP_ASSIGN(l.original_length, f.number("original_max_position_embeddings", 1.0, kMaxPositions));
  WISP_ASSIGN(l.low_turns, f.number("low_freq_factor", 1e-6, 1e6));
  WISP_ASSIGN(l.high_turns, f.number("high_freq_factor", 1e-6, 1e6));
  if (l.high_turns <= l.low_turns) return f.wrong("high_freq_factor", "is not above low_freq_factor");
  return l;
}

}  // namespace

Result<Config> parse_config(std::string_view config, std::string_view generation) {
  Config c;
  WISP_ASSIGN(Json json, parse_json_object(config, std::string(kFile)));
  c.root = std::make_shared<const Json>(std::move(json));
  const Fields root(*c.root, std::string(kFile));
  c.text = c.root.get();
  c.where = kFile;
  if (root.has("text_config")) {
    WISP_ASSIGN(const Fields nested, root.object("text_config"));
    c.text = &nested.json();
    c.where = nested.where();
  }
  WISP_TRY(read_identity(root, c));
  WISP_TRY(read_shared_numbers(c));
  for (const Fields& f : {c.fields(), root}) {
    if (c.quant.method != QuantMethod::kNone) break;
    WISP_ASSIGN(c.quant, read_quant(f));
  }
  for (const Fields& f : {root, c.fields()}) {
    if (!f.has("tie_word_embeddings")) continue;
    WISP_ASSIGN(c.tied, f.boolean("tie_word_embeddings"));
  }
  if (!generation.empty()) {
    WISP_ASSIGN(const Json g, parse_json_object(generation, "generation_config.json"));
    WISP_TRY(read_generation(g, c));
  }
  for (const Fields& f : {c.fields(), root})
    if (c.generation.eos.empty()) WISP_TRY(read_stop_ids(f, c, c.generation.eos));
  return c;
}

Result<Config> load_config(const std::string& folder) {
  WISP_ASSIGN(const std::string text, read_text_file(folder + "/config.json"));
  std::string generation;
  auto read = read_text_file(folder + "/generation_config.json");
  if (read.ok())
    generation = *std::move(read);
  else if (read.error().code != ErrorCode::kNotFound)
    return std::move(read).error();
  auto c = parse_config(text, generation);
  if (!c.ok()) return std::move(c).error().within(folder);
  return c;
}

Result<RopeSpec> read_rope(const Config& c, std::uint32_t head_dim, const RopeDefaults& defaults) {
  const Fields top = c.fields();
  const Json none = Json::object();
  Fields scaling(none, c.where);
  const bool modern = top.has("rope_parameters");
  if (modern || top.has("rope_scaling")) {
    WISP_ASSIGN(scaling, top.object(modern ? "rope_parameters" : "rope_scaling"));
  }
  const auto from = [&](const char* key) -> const Fields& { return scaling.has(key) ? scaling : top; };

  RopeSpec r;
  WISP_ASSIGN(r.theta, from("rope_theta").number_or("rope_theta", defaults.theta, 1.0 + 1e-9, 1e15));
  WISP_ASSIGN(const double partial,
              from("partial_rotary_factor").number_or("partial_rotary_factor", defaults.partial, 0.0, 1.0));
  r.width = static_cast<std::uint32_t>(head_dim * partial);
  if (r.width == 0 || r.width % 2 != 0) {
    return top.wrong("partial_rotary_factor", "rotates " + std::to_string(r.width) + " of " +
                                                  std::to_string(head_dim) +
                                                  " entries; an even number above 0 is needed");
  }
  WISP_ASSIGN(const std::string type,
              scaling.text_or(scaling.has("rope_type") ? "rope_type" : "type", "default"));
  if (type == "yarn") {
    WISP_ASSIGN(r.yarn, read_yarn(scaling, c.max_positions));
  } else if (type == "llama3") {
    WISP_ASSIGN(r.llama3, read_llama3(scaling));
  } else if (type != "default") {
    return unsupported(scaling.where() + ": rope_type " + printable(type) +
                       " is not supported; supported: default, llama3, yarn");
  } else if (!modern && !scaling.has("rope_type") && !scaling.has("type") && scaling.has("factor")) {
    return scaling.wrong("rope_type", "is missing beside a factor");
  }
  return r;
}

}  // namespace wisp::model
