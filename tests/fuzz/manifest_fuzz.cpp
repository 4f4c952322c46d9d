#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>

#include "model/config.hpp"
#include "model/family.hpp"
#include "model/manifest.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

using Json = nlohmann::ordered_json;

/// A node of `root`, each step down chosen by chance.
Json& any_node(Json& root, std::minstd_rand& rng) {
  Json* at = &root;
  while (at->is_structured() && !at->empty() && rng() % 8 != 0) {
    auto next = at->begin();
    std::advance(next, static_cast<std::ptrdiff_t>(rng() % at->size()));
    at = &*next;
  }
  return *at;
}

/// What is neither the right type nor in range somewhere.
Json odd_value(std::minstd_rand& rng) {
  static const std::array<Json, 14> kValues{nullptr,
                                            true,
                                            0,
                                            1,
                                            -1,
                                            4095,
                                            std::uint64_t{1} << 31,
                                            (std::uint64_t{1} << 32) - 1,
                                            INT64_MAX,
                                            UINT64_MAX,
                                            0.5,
                                            "",
                                            "../x",
                                            Json::array()};
  return kValues[rng() % kValues.size()];
}

void mutate(Json& root, std::minstd_rand& rng) {
  Json& node = any_node(root, rng);
  switch (rng() % 4) {
    case 0:
      node = odd_value(rng);
      break;
    case 1:
      if (node.is_structured() && !node.empty()) {
        auto victim = node.begin();
        std::advance(victim, static_cast<std::ptrdiff_t>(rng() % node.size()));
        node.erase(victim);
      }
      break;
    case 2:
      if (node.is_array() && !node.empty()) node.push_back(Json(node[rng() % node.size()]));
      break;
    default:
      node = Json(any_node(root, rng));
  }
}

}  // namespace

/// Mostly changes the tree, so that what comes out still reaches the checks behind the parser.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  std::minstd_rand rng(seed);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Json root = rng() % 8 == 0 ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
  if (root.is_discarded()) return LLVMFuzzerMutate(data, size, max_size);
  mutate(root, rng);
  const std::string out = root.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (out.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, out.data(), out.size());
  return out.size();
}

/// Any bytes are either refused, or a manifest whose text form gives the same manifest again. The same bytes
/// as a config must not do worse.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace wisp::model;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto m = parse_manifest(text); m.ok()) {
    const std::string once = write_manifest(*m);
    const auto again = parse_manifest(once);
    if (!again.ok() || write_manifest(*again) != once) std::abort();
  }
  if (const auto c = parse_config(text, text); c.ok()) {
    const auto spec = c->family->describe(*c);
    if (spec.ok() && spec->layers.size() != c->layers) std::abort();
  }
  return 0;
}
