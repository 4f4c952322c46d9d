#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/config.hpp"
#include "model/family.hpp"
#include "model/manifest.hpp"

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
