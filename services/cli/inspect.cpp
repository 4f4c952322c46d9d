#include "services/cli/inspect.hpp"

#include <cstdio>
#include <memory>

#include "services/cli/model_progress.hpp"

namespace wisp::cli {
namespace {

using model::AttentionSpec;
using model::ModelSpec;
using Json = nlohmann::ordered_json;

std::string count(std::uint64_t n, const char* one, const char* many) {
  return std::to_string(n) + " " + (n == 1 ? one : many);
}

std::string rope_words(const model::RopeSpec& r) {
  char theta[32];
  std::snprintf(theta, sizeof theta, "%g", r.theta);
  std::string s = "rope theta " + std::string(theta) + " on " + std::to_string(r.width);
  if (r.interleaved) s += " interleaved";
  if (r.yarn) {
    char factor[32];
    std::snprintf(factor, sizeof factor, "%g", r.yarn->factor);
    s += ", YaRN x" + std::string(factor);
  }
  if (r.llama3) {
    char factor[32];
    std::snprintf(factor, sizeof factor, "%g", r.llama3->factor);
    s += ", Llama 3's scaling x" + std::string(factor);
  }
  return s;
}

std::string attention_words(const ModelSpec& m) {
  const AttentionSpec& a = m.attention;
  std::string s;
  if (a.is_latent()) {
    s = "latent, " + std::to_string(a.heads) + " heads of " + std::to_string(a.latent.nope) + " + " +
        std::to_string(a.rope.width) + ", latent " + std::to_string(a.latent.kv_rank);
    if (a.latent.q_rank != 0) s += ", of queries " + std::to_string(a.latent.q_rank);
    if (a.indexer.heads != 0) {
      std::uint64_t full = 0;
      for (const auto& l : m.layers) full += l.indexes ? 1 : 0;
      s += "; an indexer in " + count(full, "layer", "layers") + " picks " + std::to_string(a.indexer.top_k) +
           " positions";
    }
  } else {
    s = "grouped-query, " + std::to_string(a.heads) + " heads over " + std::to_string(a.kv_heads) + " of " +
        std::to_string(a.head_dim);
    if (a.qk_norm != model::QkNorm::kNone) s += ", q and k normalised";
    if (a.sinks) s += ", sinks";
  }
  for (const auto& l : m.layers)
    if (l.window != 0) {
      s += ", windows of " + std::to_string(l.window);
      break;
    }
  return s + "; " + rope_words(a.rope);
}

std::string router_words(const ModelSpec& m) {
  const model::RouterSpec& r = m.router;
  std::string s = std::to_string(r.top_k) + " of " + count(r.experts, "expert", "experts");
  if (r.kind == model::RouterKind::kSoftmaxTopK) s += " by softmax";
  if (r.kind == model::RouterKind::kSigmoidTopK) s += " by sigmoid and a selection bias";
  if (r.kind == model::RouterKind::kTopKSoftmax) s += " by logit";
  if (r.groups > 1)
    s += ", from " + std::to_string(r.kept_groups) + " of " + std::to_string(r.groups) + " groups";
  if (m.shared.width != 0)
    s += std::string("; a ") + (m.shared.gated ? "gated " : "") + "shared expert of width " +
         std::to_string(m.shared.width);
  return s;
}

/// "int4 in groups of 32", or both forms where down differs from gate and up.
std::string expert_words(const model::ExpertShape& e) {
  const auto words = [](const model::ExpertMatrix& m) {
    std::string s(kernels::name_of(m.format));
    if (m.group != 0) s += " in groups of " + std::to_string(m.group);
    return s;
  };
  const std::string gate = words(e.gate), down = words(e.down);
  return gate == down ? gate : gate + ", down " + down;
}

/// What is known of a checkpoint that cannot be converted, and why it cannot.
std::string refused(const model::Inspection& i) {
  return "  a position of KV    " + std::to_string(i.kv_bytes_per_token(4)) + " bytes in f32, " +
         std::to_string(i.kv_bytes_per_token(2)) + " in bf16\n  cannot be converted: " + i.refusal + "\n";
}

int run(const std::string& folder, bool json) {
  const auto seen = model::inspect(folder);
  if (!seen.ok()) {
    std::fprintf(stderr, "wisp inspect: %s\n", seen.error().text.c_str());
    return 1;
  }
  for (const std::string& note : seen->notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  std::fputs((json ? inspect_json(*seen).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                   : inspect_text(*seen))
                 .c_str(),
             stdout);
  return seen->refusal.empty() ? 0 : 1;
}

}  // namespace

Json inspect_json(const model::Inspection& i) {
  const ModelSpec& m = i.manifest.spec;
  const bool moe = m.moe_layers() != 0;
  return {{"name", i.manifest.name},
          {"family", m.family},
          {"converted", i.converted},
          {"refusal", i.refusal},
          {"layers", m.layers.size()},
          {"moe_layers", m.moe_layers()},
          {"hidden", m.hidden},
          {"vocab", m.vocab},
          {"max_positions", m.max_positions},
          {"attention", attention_words(m)},
          {"router", moe ? router_words(m) : ""},
          {"expert_format", moe && i.refusal.empty() ? expert_words(m.expert) : ""},
          {"expert_extents", m.expert_count()},
          {"expert_bytes", i.expert_bytes()},
          {"all_expert_bytes", i.all_expert_bytes()},
          {"dense_bytes", i.manifest.dense_bytes},
          {"dense_formats", i.dense_formats()},
          {"draft_head_bytes", i.draft_head_bytes()},
          {"folder_bytes", i.bytes},
          {"cold_bytes_per_token", i.cold_bytes_per_token()},
          {"profile", i.manifest.profile},
          {"fast_measured_on", i.manifest.fast_measured_on},
          {"kv_bytes_per_token", i.kv_bytes_per_token(4)},
          {"kv_bytes_per_token_bf16", i.kv_bytes_per_token(2)}};
}

std::string inspect_text(const model::Inspection& i) {
  const ModelSpec& m = i.manifest.spec;
  std::string s = i.manifest.name + ": " + m.family + (i.converted ? ", converted" : ", a checkpoint") + "\n";
  const auto row = [&s](const char* what, const std::string& value) {
    s +=
        "  " + std::string(what) + std::string(20 - std::char_traits<char>::length(what), ' ') + value + "\n";
  };
  const auto bytes = [](std::uint64_t n) { return show_bytes(static_cast<double>(n)); };
  row("layers", std::to_string(m.layers.size()) + ", " + std::to_string(m.moe_layers()) +
                    " with experts; hidden " + std::to_string(m.hidden) + ", vocabulary " +
                    std::to_string(m.vocab) + ", context " + std::to_string(m.max_positions));
  row("attention", attention_words(m));
  if (m.moe_layers() != 0) {
    row("router", router_words(m));
    if (!i.refusal.empty()) return s + refused(i);
    row("an expert", expert_words(m.expert) + ", " + bytes(i.expert_bytes()) + "; " +
                         count(m.expert_count(), "extent", "extents") + ", " + bytes(i.all_expert_bytes()) +
                         " on the drive");
    row("a token, cold",
        bytes(i.cold_bytes_per_token()) + " from the drive where none of its experts is in memory");
  }
  if (!i.refusal.empty()) return s + refused(i);
  std::string formats;
  for (const auto& [name, n] : i.dense_formats())
    formats += (formats.empty() ? " (" : ", ") + name + " " + bytes(n);
  row("always in memory", bytes(i.manifest.dense_bytes) + (formats.empty() ? "" : formats + ")"));
  for (const model::Manifest& head : i.manifest.draft_head)
    row("draft head",
        bytes(i.draft_head_bytes()) + ": one layer, experts in " + expert_words(head.spec.expert));
  row("a position of KV", std::to_string(i.kv_bytes_per_token(4)) + " bytes in f32, " +
                              std::to_string(i.kv_bytes_per_token(2)) + " in bf16 (--kv)");
  row("numerics", i.manifest.profile + " (" + profile_reason(i.manifest) + ")");
  row("folder", bytes(i.bytes) + (i.converted ? "" : " once converted"));
  return s;
}

void add_inspect(CLI::App& app, int& exit_code) {
  CLI::App* sub = app.add_subcommand("inspect", "Say what a checkpoint or a model folder is and costs");
  struct Flags {
    std::string folder;
    bool json = false;
  };
  const auto f = std::make_shared<Flags>();
  sub->add_option("FOLDER", f->folder, "A Hugging Face folder, or one made by `wisp convert`")->required();
  sub->add_flag("--json", f->json, "One JSON object");
  sub->callback([f, &exit_code] { exit_code = run(f->folder, f->json); });
}

}  // namespace wisp::cli
