#include "services/cli/cache.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "services/cli/pipeline.hpp"
#include "services/loader/learned_counts.hpp"

namespace wisp::cli {

namespace {

constexpr std::size_t kShown = 10;

struct CacheFlags {
  std::string model;
  bool json = false;
};

/// The model's manifest and the file of what was learned of it.
struct Place {
  model::Manifest manifest;
  std::string file;
};

Result<Place> place_of(const std::string& folder) {
  WISP_ASSIGN(model::Manifest manifest, model::load_manifest(folder));
  std::string file = loader::learned_path(manifest.model_hash);
  if (file.empty()) return not_found("neither XDG_STATE_HOME nor HOME is an absolute path: nothing is kept");
  return Place{std::move(manifest), std::move(file)};
}

Result<int> show(const CacheFlags& f) {
  WISP_ASSIGN(const Place place, place_of(f.model));
  const model::ModelSpec& spec = place.manifest.spec;
  const auto layers = static_cast<std::uint32_t>(spec.layers.size());
  auto counts =
      loader::LearnedCounts::load(place.file, place.manifest.model_hash, layers, spec.router.experts);
  const bool none = !counts.ok() && counts.error().code == ErrorCode::kNotFound;
  if (!counts.ok() && !none) return std::move(counts).error();
  const loader::LearnedCounts learned =
      none ? loader::LearnedCounts(layers, spec.router.experts) : std::move(*counts);
  const auto keys = learned.most_wanted();
  double rows = 0;
  for (std::uint32_t l = 0; l < layers; ++l) rows = std::max(rows, learned.rows(l));
  nlohmann::ordered_json j{{"file", place.file},
                           {"tokens", rows},
                           {"experts_seen", keys.size()},
                           {"experts", spec.expert_count()},
                           {"most_wanted", nlohmann::ordered_json::array()}};
  std::string text = place.file + "\n" + std::to_string(static_cast<std::uint64_t>(rows)) +
                     " tokens remembered, " + std::to_string(keys.size()) + " of " +
                     std::to_string(spec.expert_count()) + " experts seen\n";
  for (std::size_t i = 0; i < std::min(kShown, keys.size()); ++i) {
    const std::uint32_t layer = keys[i] >> 16, expert = keys[i] & 0xffff;
    const float share = learned.share(layer, expert);
    j["most_wanted"].push_back({{"layer", layer}, {"expert", expert}, {"share", share}});
    char line[80];
    std::snprintf(line, sizeof line, "layer %3u expert %4u  %5.1f %% of tokens\n", layer, expert,
                  100.0 * static_cast<double>(share));
    text += line;
  }
  std::fputs(f.json ? (j.dump() + "\n").c_str() : text.c_str(), stdout);
  return std::fflush(stdout) == 0 ? Result<int>(0) : io_error("stdout is gone");
}

Result<int> reset(const CacheFlags& f) {
  WISP_ASSIGN(const Place place, place_of(f.model));
  if (::unlink(place.file.c_str()) != 0 && errno != ENOENT)
    return io_error(place.file + ": " + std::strerror(errno));
  ::unlink((place.file + ".new").c_str());  // of an engine that was killed while it wrote
  std::fprintf(stderr, "nothing is remembered of %s now\n", f.model.c_str());
  return 0;
}

void add(CLI::App& cache, const char* name, const char* what, Result<int> (*run)(const CacheFlags&),
         bool json, int& exit_code) {
  CLI::App* c = cache.add_subcommand(name, what);
  const auto f = std::make_shared<CacheFlags>();
  c->add_option("MODEL", f->model, "Folder made by `wisp convert`")->required();
  if (json) c->add_flag("--json", f->json, "One JSON object");
  c->callback([f, run, name, &exit_code] {
    auto code = run(*f);
    exit_code = code.ok() ? *code : report((std::string("cache ") + name).c_str(), code.error());
  });
}

}  // namespace

void add_cache(CLI::App& app, int& exit_code) {
  CLI::App* c = app.add_subcommand("cache", "What the expert cache learned of a model");
  c->require_subcommand(1);
  add(*c, "show", "Show it", show, true, exit_code);
  add(*c, "reset", "Forget it", reset, false, exit_code);
  c->footer("Counts of chosen experts only, no text: $XDG_STATE_HOME/wisp/learned (~/.local/state).");
}

}  // namespace wisp::cli
