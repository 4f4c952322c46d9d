#include "model/convert_plan.hpp"

#include <xxhash.h>

#include <filesystem>

#include "model/draft_head.hpp"
#include "model/family.hpp"
#include "model/limits.hpp"

namespace wisp::model {
namespace {

namespace fs = std::filesystem;

/// The default template among several, or the only one. Empty: there is none.
Result<std::string> template_of(const Json& tokenizer_config) {
  const Fields f(tokenizer_config, "tokenizer_config.json");
  const Json* v = f.find("chat_template");
  if (!v) return std::string();
  if (v->is_string()) return v->get<std::string>();
  if (!v->is_array()) return f.wrong("chat_template", "is neither a text nor a list");
  for (const auto& entry : *v) {
    if (!entry.is_object()) continue;
    const Fields t(entry, f.where() + ": chat_template");
    if (const Json* name = t.find("name"); name && *name == "default") return t.text("template");
  }
  return std::string();
}

}  // namespace

Status collect_texts(ConvertPlan& plan) {
  const std::string& folder = plan.checkpoint->folder();
  const auto copy = [&](const std::string& from, const std::string& to) -> Result<bool> {
    auto text = read_text_file(folder + "/" + from);
    if (text.ok()) {
      plan.texts.emplace_back(to, *std::move(text));
      return true;
    }
    if (text.error().code == ErrorCode::kNotFound) return false;
    return std::move(text).error();
  };
  WISP_TRY(copy("config.json", "source_config.json"));
  WISP_TRY(copy("generation_config.json", "generation_config.json"));
  WISP_ASSIGN(const bool tokenizer, copy("tokenizer.json", "tokenizer.json"));
  WISP_ASSIGN(const bool ranks, tokenizer ? false : copy("tiktoken.model", "tiktoken.model"));
  if (!tokenizer && !ranks)
    plan.notes.push_back("tokenizer.json is missing, and tiktoken.model too: the model takes token ids only");
  WISP_ASSIGN(const bool has_template, copy("chat_template.jinja", "chat_template.jinja"));
  WISP_ASSIGN(const bool config, copy("tokenizer_config.json", "tokenizer_config.json"));
  if (has_template) return {};
  std::string text;
  if (config) {
    WISP_ASSIGN(const Json json,
                parse_json_object(plan.texts.back().second, folder + "/tokenizer_config.json"));
    WISP_ASSIGN(text, template_of(json));
  }
  if (text.empty())
    plan.notes.push_back("there is no chat template: the model completes text, but does not chat");
  else
    plan.texts.emplace_back("chat_template.jinja", std::move(text));
  return {};
}

namespace {
/// The config, or what is in its place: a file, or weights of a kind that is not read.
Result<Config> config_of(const std::string& folder) {
  std::error_code ec;
  if (fs::is_regular_file(folder, ec))
    return unsupported(folder +
                       ": is a file; give the folder that holds config.json and the .safetensors files");
  auto config = load_config(folder);
  if (config.ok() || config.error().code != ErrorCode::kNotFound) return config;
  auto opened = Checkpoint::open(folder);
  if (!opened.ok() && opened.error().code == ErrorCode::kUnsupported) return std::move(opened).error();
  return config;
}
}  // namespace

Result<ConvertPlan> plan_conversion(const std::string& folder, const TargetFormats& target, bool draft_head) {
  ConvertPlan plan;
  plan.target = target;
  WISP_ASSIGN(plan.config, config_of(folder));
  auto spec = plan.config.family->describe(plan.config);
  if (!spec.ok()) return std::move(spec).error().within(folder);
  plan.manifest.spec = *std::move(spec);
  WISP_ASSIGN(Checkpoint checkpoint, Checkpoint::open(folder));
  plan.checkpoint = std::make_shared<const Checkpoint>(std::move(checkpoint));
  if (plan.manifest.spec.expert_count() > kMaxExpertsInAll) {  // before tables of that size are made
    return invalid(folder + ": config.json: claims " + std::to_string(plan.manifest.spec.expert_count()) +
                   " experts in all; at most " + std::to_string(kMaxExpertsInAll) + " are allowed");
  }
  WISP_ASSIGN(const SortedTensors sorted, sort_tensors(plan));
  WISP_TRY(fit_tensors(sorted, plan));
  if (sorted.predictions != 0) {
    if (draft_head && !plan.config.family->draft_head.empty()) {
      WISP_ASSIGN(plan.draft_head, plan_draft_head(plan));
      for (const std::string& note : plan.draft_head->notes) plan.notes.push_back("draft head: " + note);
    } else {
      plan.notes.push_back(std::to_string(sorted.predictions) +
                           " tensors of the layer that predicts further tokens are left out");
    }
  }
  WISP_TRY(collect_texts(plan));

  const FastMeasure& fast = plan.config.family->fast;
  plan.manifest.fast_measured_on = fast.model;
  if (fast.within && multiplies_bytes(plan.manifest)) plan.manifest.profile = "fast";
  plan.manifest.name = folder_name(folder);
  plan.manifest.generation = plan.config.generation;
  for (const auto& [name, text] : plan.texts)
    plan.manifest.texts[name] = {text.size(), XXH3_64bits(text.data(), text.size())};
  auto checked = check_spec(plan.manifest.spec);
  if (!checked.ok()) return std::move(checked).error().within(folder + ": config.json");
  if (plan.draft_head) {
    Manifest& head = plan.manifest.draft_head.emplace_back(plan.draft_head->manifest);
    plan.draft_head->layout = lay_out_folder(head, plan.draft_head->items);
    plan.bytes += plan.draft_head->layout.weight_bytes;
  }
  plan.layout = lay_out_folder(plan.manifest, plan.items);
  plan.bytes += plan.layout.total_bytes;
  for (const auto& [name, text] : plan.texts) plan.bytes += text.size();
  return plan;
}

}  // namespace wisp::model
