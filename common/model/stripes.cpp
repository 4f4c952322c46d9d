#include "model/stripes.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "model/json.hpp"
#include "model/limits.hpp"
#include "model/stripe_files.hpp"

namespace wisp::model {
namespace {

constexpr std::uint32_t kStripeVersion = 1;
constexpr std::size_t kHexDigits = 16;
constexpr std::uint64_t kMaxStride = std::uint64_t{1} << 40;

std::string hex(std::uint64_t n) {
  char s[kHexDigits + 1];
  std::snprintf(s, sizeof s, "%016" PRIx64, n);
  return s;
}

Result<std::uint64_t> parse_word(std::string_view digits, const std::string& who) {
  std::uint64_t n = 0;
  const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), n, 16);
  if (digits.size() != kHexDigits || ec != std::errc() || end != digits.data() + digits.size())
    return invalid(who + ": " + printable(digits) + " is not 16 hex digits");
  return n;
}

Result<std::uint64_t> parse_word(const Fields& f, std::string_view key) {
  WISP_ASSIGN(const std::string text, f.text(key));
  return parse_word(text, f.where() + ": " + std::string(key));
}

std::string part_name(const Stripe& s) {
  return "stripe " + std::to_string(s.part + 1) + " of " + std::to_string(s.parts);
}

std::string ways_out(const std::string& folder) {
  return "; mount its drive, or say where it is: wisp stripe " + folder +
         " --at DIR, or read the model folder alone: wisp stripe " + folder + " --drop";
}

Status parse_layer(const Json& v, std::size_t layer, const Fields& root, Stripe& s) {
  std::vector<std::uint64_t> sums;
  if (v.is_null()) {
    s.files.emplace_back();
    s.checksums.push_back(std::move(sums));
    return {};
  }
  const std::string who = root.where() + ": layer " + std::to_string(layer);
  if (!v.is_object()) return invalid(who + ": is no object");
  const Fields f(v, who);
  WISP_ASSIGN(std::string file, f.text("file"));
  if (file.empty() || file.find('/') != file.npos || file.find('\0') != file.npos || file[0] == '.')
    return f.wrong("file", "is " + printable(file) + ", which is not a file name");
  WISP_ASSIGN(const std::string words, f.text("checksums"));
  if (words.size() % kHexDigits != 0) return f.wrong("checksums", "are cut off");
  sums.reserve(words.size() / kHexDigits);
  for (std::size_t at = 0; at < words.size(); at += kHexDigits) {
    WISP_ASSIGN(const std::uint64_t n, parse_word(std::string_view(words).substr(at, kHexDigits), who));
    sums.push_back(n);
  }
  s.files.push_back(std::move(file));
  s.checksums.push_back(std::move(sums));
  return {};
}

/// Holds a stripe against the model that it should be of, and its files against what it says.
Status check_stripe(const Stripe& s, const std::string& folder, const Manifest& m) {
  const std::string who = s.folder + ": " + part_name(s);
  if (s.model_hash != m.model_hash)
    return invalid(who + " is of another model than " + folder + "; make it again: wisp stripe " + folder +
                   " --to DIR");
  if (s.files.size() != m.experts.size())
    return invalid(who + " has another number of layers than the model");
  for (std::size_t l = 0; l < s.files.size(); ++l) {
    const std::size_t experts = m.experts[l].extents.size();
    if (s.checksums[l].size() != experts || s.files[l].empty() != (experts == 0))
      return invalid(who + ": layer " + std::to_string(l) + " does not go with the model");
    if (experts == 0) continue;
    const std::string path = s.folder + "/" + s.files[l];
    struct stat st {};
    if (::stat(path.c_str(), &st) != 0)
      return not_found(path + ": " + std::strerror(errno) + ": " + part_name(s) + " of " + folder +
                       " is not whole" + ways_out(folder));
    const std::uint64_t need = s.offset_of(static_cast<std::uint32_t>(experts));
    if (!S_ISREG(st.st_mode) || static_cast<std::uint64_t>(st.st_size) < need)
      return invalid(path + ": has " + std::to_string(st.st_size) + " bytes, " + part_name(s) + " needs " +
                     std::to_string(need) + ways_out(folder));
  }
  return {};
}

/// Whether the stripes are all of one division and leave nothing out.
Status check_set(const std::vector<Stripe>& all, const std::string& folder, std::uint64_t stride) {
  const Stripe& first = all.front();
  for (const Stripe& s : all)
    if (s.set != first.set || s.parts != first.parts)
      return invalid(s.folder + " and " + first.folder + " are stripes of two divisions of " + folder +
                     "; make them again together: wisp stripe " + folder + " --to DIR DIR");
  for (std::uint32_t i = 0; i < first.parts - 1; ++i) {
    if (i < all.size() && i > 0 && all[i].part == all[i - 1].part)
      return invalid(all[i].folder + " and " + all[i - 1].folder + " are both " + part_name(all[i]));
    if (i >= all.size() || all[i].part != i + 1)
      return not_found("stripe " + std::to_string(i + 2) + " of " + std::to_string(first.parts) + " of " +
                       folder + " is not among the folders" + ways_out(folder));
  }
  if (all.size() >= first.parts) return invalid(all.back().folder + ": is there twice");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::uint64_t end = i + 1 < all.size() ? all[i + 1].begin : stride;
    if (all[i].end != end) return invalid(all[i].folder + ": does not end where the next stripe begins");
  }
  return {};
}

}  // namespace

Result<Stripe> parse_stripe(std::string_view text, const std::string& folder) {
  const std::string who = folder + "/" + kStripeFile;
  WISP_ASSIGN(const Json json, parse_json_object(text, who));
  const Fields root(json, who);
  WISP_ASSIGN(const std::uint32_t version, root.u32("stripe_version", 0, UINT32_MAX));
  if (version != kStripeVersion)
    return unsupported(who + ": stripe_version " + std::to_string(version) + ", this build reads " +
                       std::to_string(kStripeVersion));
  Stripe s;
  s.folder = folder;
  WISP_ASSIGN(s.model_hash, parse_word(root, "model_hash"));
  WISP_ASSIGN(s.set, parse_word(root, "set"));
  WISP_ASSIGN(s.parts, root.u32("parts", 2, kMaxStripes));
  WISP_ASSIGN(s.part, root.u32("part", 1, s.parts - 1));
  WISP_ASSIGN(s.begin, root.u64("begin", kExtentAlign, kMaxStride));
  WISP_ASSIGN(s.end, root.u64("end", s.begin + kExtentAlign, kMaxStride));
  if (s.begin % kExtentAlign != 0 || s.end % kExtentAlign != 0)
    return root.wrong("begin", "or end is not a multiple of 4096");
  WISP_ASSIGN(const Json* layers, root.array("layers"));
  for (std::size_t l = 0; l < layers->size(); ++l) WISP_TRY(parse_layer((*layers)[l], l, root, s));
  return s;
}

std::string write_stripe(const Stripe& s) {
  std::string out = "{\n\"stripe_version\": " + std::to_string(kStripeVersion);
  out += ",\n\"model_hash\": \"" + hex(s.model_hash) + "\",\n\"set\": \"" + hex(s.set) + "\"";
  out += ",\n\"part\": " + std::to_string(s.part) + ",\n\"parts\": " + std::to_string(s.parts);
  out += ",\n\"begin\": " + std::to_string(s.begin) + ",\n\"end\": " + std::to_string(s.end);
  out += ",\n\"layers\": [";
  for (std::size_t l = 0; l < s.files.size(); ++l) {
    out += l != 0 ? ",\n " : "\n ";
    if (s.files[l].empty()) {
      out += "null";
      continue;
    }
    out += "{\"file\": " + Json(s.files[l]).dump() + ", \"checksums\": \"";
    for (const std::uint64_t sum : s.checksums[l]) out += hex(sum);
    out += "\"}";
  }
  return out + "\n]\n}\n";
}

Result<std::vector<Stripe>> load_stripes_of(const std::string& folder, const Manifest& m,
                                            const std::vector<std::string>& folders) {
  std::vector<Stripe> all;
  for (const std::string& at : folders) {
    auto text = read_text_file(at + "/" + kStripeFile);
    if (!text.ok())
      return Error{text.error().code,
                   text.error().text + ": " + at + " should hold a stripe of " + folder + ways_out(folder)};
    WISP_ASSIGN(Stripe s, parse_stripe(*text, at));
    all.push_back(std::move(s));
  }
  if (all.empty()) return all;
  std::sort(all.begin(), all.end(), [](const Stripe& a, const Stripe& b) { return a.part < b.part; });
  for (const Stripe& s : all) WISP_TRY(check_stripe(s, folder, m));
  WISP_TRY(check_set(all, folder, m.spec.expert.stride));
  return all;
}

Result<std::vector<std::string>> stripe_folders(const std::string& folder) {
  const std::string path = folder + "/" + kStripesFile;
  auto text = read_text_file(path);
  if (!text.ok()) {
    if (text.error().code == ErrorCode::kNotFound) return std::vector<std::string>{};
    return std::move(text).error();
  }
  WISP_ASSIGN(const Json json, parse_json_object(*text, path));
  const Fields root(json, path);
  WISP_ASSIGN(const Json* list, root.array("folders"));
  std::vector<std::string> folders;
  for (const Json& v : *list) {
    if (!v.is_string() || folders.size() == kMaxStripes)
      return root.wrong("folders", "is no list of folders");
    folders.push_back(v.get<std::string>());
  }
  return folders;
}

Result<std::vector<Stripe>> load_stripes(const std::string& folder, const Manifest& m) {
  WISP_ASSIGN(const auto folders, stripe_folders(folder));
  return load_stripes_of(folder, m, folders);
}

Result<std::vector<std::uint64_t>> cut_extent(std::uint64_t stride, const std::vector<double>& shares) {
  double sum = 0.0;
  for (const double s : shares) {
    if (!(s > 0.0) || !std::isfinite(s)) return invalid("--shares: each share must be a number above 0");
    sum += s;
  }
  const std::uint64_t blocks = stride / kExtentAlign;
  if (shares.size() > blocks)
    return invalid("experts of " + std::to_string(stride) + " bytes cannot be divided over " +
                   std::to_string(shares.size()) + " drives");
  std::vector<std::uint64_t> cuts{0};
  double before = 0.0;
  for (std::size_t i = 0; i + 1 < shares.size(); ++i) {
    before += shares[i];
    const auto ideal = static_cast<std::uint64_t>(std::llround(static_cast<double>(blocks) * before / sum));
    const std::uint64_t least = cuts.back() / kExtentAlign + 1, most = blocks - (shares.size() - 1 - i);
    cuts.push_back(std::clamp(ideal, least, most) * kExtentAlign);
  }
  cuts.push_back(blocks * kExtentAlign);
  return cuts;
}

}  // namespace wisp::model
