#include <cinttypes>
#include <cstdio>

#include "model/json.hpp"
#include "model/manifest.hpp"
#include "model/spec_json.hpp"

namespace wisp::model {
namespace {

std::string hex(std::uint64_t n) {
  char s[17];
  std::snprintf(s, sizeof s, "%016" PRIx64, n);
  return s;
}

Json generation_json(const GenerationDefaults& g) {
  return {{"sample", g.sample}, {"temperature", g.temperature},
          {"top_k", g.top_k},   {"top_p", g.top_p},
          {"min_p", g.min_p},   {"repetition_penalty", g.repetition_penalty},
          {"eos", g.eos}};
}

/// A folder's name may be any bytes; what is no UTF-8 is replaced.
std::string text(const Json& j) {
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The dense part and the experts: one line for each tensor and each layer.
std::string weights_text(const Manifest& m) {
  std::string s;
  s += "\"dense\": {\"file\": " + text(m.dense_file) +
       ", \"file_offset\": " + std::to_string(m.dense_file_offset) +
       ", \"bytes\": " + std::to_string(m.dense_bytes) + ", \"tensors\": {";
  bool first = true;
  for (const auto& [name, t] : m.dense) {
    s += first ? "\n " : ",\n ";
    first = false;
    Json entry{{"format", name_of(t.format)},
               {"rows", t.rows},
               {"cols", t.cols},
               {"tiled", t.tiled},
               {"offset", t.offset},
               {"bytes", t.bytes},
               {"checksum", hex(t.checksum)}};
    if (t.group != 0) entry["group"] = t.group;
    if (t.ordered) entry["ordered"] = true;
    s += text(name) + ": " + text(entry);
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
  return s + "\n]";
}

}  // namespace

/// One line for each tensor and each layer: a manifest of 20,000 experts stays readable, and a diff useful.
std::string write_manifest(const Manifest& m) {
  std::string s = "{\n\"layout_version\": " + std::to_string(m.layout_version);
  s += ",\n\"name\": " + text(m.name);
  s += ",\n\"profile\": " + text(m.profile);
  s += ",\n\"fast_measured_on\": " + text(m.fast_measured_on);
  s += ",\n\"model_hash\": \"" + hex(m.model_hash) + "\"";
  s += ",\n\"spec\": " + spec_json(m.spec).dump(1);
  s += ",\n\"generation\": " + text(generation_json(m.generation));
  Json texts = Json::object();
  for (const auto& [name, t] : m.texts) texts[name] = {{"bytes", t.bytes}, {"checksum", hex(t.checksum)}};
  s += ",\n\"texts\": " + text(texts);
  s += ",\n" + weights_text(m);
  for (const Manifest& head : m.draft_head)
    s += ",\n\"draft_head\": {\"hash\": \"" + hex(head.model_hash) +
         "\",\n\"spec\": " + spec_json(head.spec).dump(1) + ",\n" + weights_text(head) + "}";
  return s + "\n}\n";
}

}  // namespace wisp::model
