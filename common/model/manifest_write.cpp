#include <cinttypes>
#include <cstdio>

#include "model/json.hpp"
#include "model/manifest.hpp"

namespace wisp::model {
namespace {

std::string hex(std::uint64_t n) {
  char s[17];
  std::snprintf(s, sizeof s, "%016" PRIx64, n);
  return s;
}

Json rope_json(const RopeSpec& r) {
  Json j{{"theta", r.theta}, {"width", r.width}, {"interleaved", r.interleaved}};
  if (r.yarn) {
    const YarnSpec& y = *r.yarn;
    j["yarn"] = {{"factor", y.factor},
                 {"original_length", y.original_length},
                 {"beta_fast", y.beta_fast},
                 {"beta_slow", y.beta_slow},
                 {"mscale", y.mscale},
                 {"mscale_all_dim", y.mscale_all_dim},
                 {"attention_factor", y.attention_factor},
                 {"truncate", y.truncate}};
  }
  return j;
}

Json spec_json(const ModelSpec& m) {
  const auto& a = m.attention;
  Json layers = Json::array();
  for (const auto& l : m.layers) layers.push_back(l.moe ? Json("moe") : Json(l.dense_width));
  Json j{{"family", m.family},
         {"hidden", m.hidden},
         {"vocab", m.vocab},
         {"max_positions", m.max_positions},
         {"norm_eps", m.norm_eps},
         {"tied_head", m.tied_head},
         {"attention",
          {{"heads", a.heads},
           {"kv_heads", a.kv_heads},
           {"head_dim", a.head_dim},
           {"head_norm", a.head_norm},
           {"bias", a.bias},
           {"rope", rope_json(a.rope)}}},
         {"layers", layers}};
  if (m.moe_layers() == 0) return j;
  const auto& e = m.expert;
  j["moe_width"] = m.moe_width;
  j["router"] = {{"kind", "softmax_top_k"},
                 {"experts", m.router.experts},
                 {"top_k", m.router.top_k},
                 {"renormalise", m.router.renormalise}};
  j["expert"] = {{"gate_up", {{"format", name_of(e.gate.format)}}},
                 {"down", {{"format", name_of(e.down.format)}}},
                 {"group", e.gate.group != 0 ? e.gate.group : e.down.group},
                 {"payload", e.payload},
                 {"stride", e.stride}};
  return j;
}

Json generation_json(const GenerationDefaults& g) {
  return {{"sample", g.sample}, {"temperature", g.temperature},
          {"top_k", g.top_k},   {"top_p", g.top_p},
          {"min_p", g.min_p},   {"eos", g.eos}};
}

}  // namespace

/// One line for each tensor and each layer: a manifest of 20,000 experts stays readable, and a diff useful.
std::string write_manifest(const Manifest& m) {
  // A folder's name may be any bytes; what is no UTF-8 is replaced.
  const auto text = [](const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); };
  std::string s = "{\n\"layout_version\": " + std::to_string(m.layout_version);
  s += ",\n\"name\": " + text(m.name);
  s += ",\n\"profile\": " + text(m.profile);
  s += ",\n\"model_hash\": \"" + hex(m.model_hash) + "\"";
  s += ",\n\"spec\": " + spec_json(m.spec).dump(1);
  s += ",\n\"generation\": " + text(generation_json(m.generation));
  Json texts = Json::object();
  for (const auto& [name, t] : m.texts) texts[name] = {{"bytes", t.bytes}, {"checksum", hex(t.checksum)}};
  s += ",\n\"texts\": " + text(texts);
  s += ",\n\"dense\": {\"file\": " + text(m.dense_file) +
       ", \"file_offset\": " + std::to_string(m.dense_file_offset) +
       ", \"bytes\": " + std::to_string(m.dense_bytes) + ", \"tensors\": {";
  bool first = true;
  for (const auto& [name, t] : m.dense) {
    s += first ? "\n " : ",\n ";
    first = false;
    s += text(name) + ": " +
         text({{"format", name_of(t.format)},
               {"rows", t.rows},
               {"cols", t.cols},
               {"tiled", t.tiled},
               {"offset", t.offset},
               {"bytes", t.bytes},
               {"checksum", hex(t.checksum)}});
  }
  s += "\n}},\n\"experts\": [";
  for (std::size_t i = 0; i < m.experts.size(); ++i) {
    const auto& layer = m.experts[i];
    s += i ? ",\n " : "\n ";
    if (layer.file.empty()) {
      s += "null";
      continue;
    }
    Json extents = Json::array();
    for (const auto& x : layer.extents) extents.push_back(Json::array({x.offset, hex(x.checksum)}));
    s += text({{"file", layer.file}, {"extents", extents}});
  }
  return s + "\n]\n}\n";
}

}  // namespace wisp::model
