#include "services/speculator/script.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace wisp::speculator {

namespace {
/// SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}
}  // namespace

Result<Script> Script::load(const std::string& path, std::uint32_t vocab) {
  std::ifstream file(path);
  if (!file) return not_found("script of drafts " + path + " cannot be read");
  Script s;
  s.vocab_ = std::max(vocab, 2u);
  std::string line, word;
  std::getline(file, line);
  std::istringstream head(line);
  head >> word;
  if (word == "nonsense") {
    s.nonsense_ = true;
    head >> s.seed_;
  } else {
    std::string seed;
    head >> s.accept_ >> seed >> s.seed_;
    if (word != "accept" || seed != "seed") head.setstate(std::ios::failbit);
  }
  if (!head) return invalid(path + ": the first line is not `accept P seed S` or `nonsense S`");
  for (std::size_t n = 2; std::getline(file, line); ++n) {
    std::istringstream ids(line);
    std::vector<std::uint32_t> all;
    for (std::uint32_t id = 0; ids >> id;) all.push_back(id);
    if (!ids.eof()) return invalid(path + ": line " + std::to_string(n) + " is not a list of ids");
    s.lines_.push_back(std::move(all));
  }
  return s;
}

std::uint64_t Script::arbitrary() {
  return seed_ = mix(seed_);
}

std::uint32_t Script::propose(std::uint32_t, std::uint64_t, std::span<const std::uint32_t> ids,
                              std::span<std::uint32_t> out) {
  if (nonsense_) {
    for (std::uint32_t& id : out) id = static_cast<std::uint32_t>(arbitrary() % vocab_);
    return static_cast<std::uint32_t>(out.size());
  }
  for (const std::vector<std::uint32_t>& line : lines_) {
    if (line.size() <= ids.size() || !std::equal(ids.begin(), ids.end(), line.begin())) continue;
    const std::size_t n = std::min(out.size(), line.size() - ids.size());
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t at = ids.size() + i;
      const bool stands = static_cast<double>(mix(seed_ ^ at << 20) >> 11) < accept_ * 0x1p53;
      out[i] = stands ? line[at] : (line[at] + 1) % vocab_;
    }
    return static_cast<std::uint32_t>(n);
  }
  return 0;
}

}  // namespace wisp::speculator
