#include "model/manifest.hpp"

#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <set>
#include <utility>

#include "model/dense_plan.hpp"
#include "model/draft_head.hpp"
#include "model/extent_lists.hpp"
#include "model/json.hpp"
#include "model/limits.hpp"
#include "model/spec_json.hpp"
#include "wisp/kernels/int8_rows.hpp"

namespace wisp::model {
namespace {

using kernels::WeightFormat;

constexpr std::string_view kFile = "manifest.json";

Result<std::uint64_t> parse_hex(const Json& v, const std::string& who) {
  std::uint64_t n = 0;
  if (v.is_string()) {
    const auto& s = v.get_ref<const std::string&>();
    const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), n, 16);
    if (ec == std::errc() && end == s.data() + s.size() && s.size() == 16) return n;
  }
  return invalid(who + ": " + printable(v.dump(-1, ' ', false, Json::error_handler_t::replace)) +
                 " is not a checksum of 16 hex digits");
}

/// A file beside the manifest; a path could lead anywhere.
bool is_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

Result<std::string> parse_file_name(const Fields& f, std::string_view key) {
  WISP_ASSIGN(std::string name, f.text(key));
  if (!is_file_name(name)) return f.wrong(key, "is " + printable(name) + ", which is not a file name");
  return name;
}

/// One dense tensor, held against the shape that the spec asks for.
Result<DenseTensor> parse_dense_tensor(const Fields& f, const DenseShape& want, std::uint64_t region,
                                       std::uint32_t ordered_width) {
  DenseTensor t;
  WISP_ASSIGN(t.format, parse_format(f));
  WISP_ASSIGN(t.rows, f.u32("rows", 1, UINT32_MAX));
  WISP_ASSIGN(t.cols, f.u32("cols", 1, UINT32_MAX));
  WISP_ASSIGN(t.tiled, f.boolean("tiled"));
  WISP_ASSIGN(t.group, f.u32_or("group", 0, 0, kMaxGroup));
  WISP_ASSIGN(t.ordered, f.boolean_or("ordered", false));
  WISP_ASSIGN(t.offset, f.u64("offset", 0, UINT64_MAX));
  WISP_ASSIGN(t.bytes, f.u64("bytes", 1, UINT64_MAX));
  const Json* sum = f.find("checksum");
  WISP_ASSIGN(t.checksum, parse_hex(sum ? *sum : Json(), f.where() + ": checksum"));
  if (t.rows != want.rows || t.cols != want.cols || t.tiled != want.matrix) {
    return invalid(f.where() + ": is " + std::to_string(t.rows) + " x " + std::to_string(t.cols) +
                   ", the model needs " + std::to_string(want.rows) + " x " + std::to_string(want.cols));
  }
  if (kernels::is_coded(t.format) && !t.tiled) return f.wrong("format", "is a coded one, which vectors lack");
  if (!group_fits(t.format, t.group)) return f.wrong("group", "does not go with the format");
  if (t.ordered && (want.name == "embed" || want.derivation != Derivation::kNone))
    return f.wrong("ordered", "is set on a matrix whose columns have no order of their own");
  if (t.ordered && t.cols > ordered_width)
    return f.wrong("ordered", "is set on a matrix wider than ordered_width");
  const std::uint64_t bytes = planes_of(t).bytes;
  if (t.bytes != bytes) {
    return f.wrong("bytes", "is " + std::to_string(t.bytes) + ", the shape needs " + std::to_string(bytes));
  }
  if (t.offset % kPlaneAlign != 0 || t.offset > region || t.bytes > region - t.offset) {
    return f.wrong("offset", std::to_string(t.offset) + " is not aligned or leaves the data section");
  }
  return t;
}

Status parse_dense(const Fields& f, Manifest& m) {
  WISP_ASSIGN(m.dense_file, parse_file_name(f, "file"));
  WISP_ASSIGN(m.dense_file_offset, f.u64("file_offset", 0, std::uint64_t{1} << 32));
  WISP_ASSIGN(m.dense_bytes, f.u64("bytes", 0, std::uint64_t{1} << 50));
  if (m.dense_file_offset % kExtentAlign != 0 || m.dense_bytes % kExtentAlign != 0) {
    return f.wrong("file_offset", "or bytes is not a multiple of 4096");
  }
  WISP_ASSIGN(const Fields tensors, f.object("tensors"));
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& want : dense_shapes(m.spec)) {
    WISP_ASSIGN(const Fields entry, tensors.object(want.name));
    WISP_ASSIGN(const DenseTensor t, parse_dense_tensor(entry, want, m.dense_bytes, m.spec.ordered_width));
    ranges.emplace_back(t.offset, t.offset + t.bytes);
    m.dense.emplace(want.name, t);
  }
  if (tensors.json().size() != m.dense.size())
    return invalid(tensors.where() + ": holds tensors that the model lacks");
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) return invalid(tensors.where() + ": two tensors overlap");
  }
  return {};
}

/// The list as a general parser reads it: for those that people have edited, and for telling what is wrong.
Result<std::vector<ExpertExtent>> parse_extent_list(const Fields& f, std::uint32_t layer) {
  WISP_ASSIGN(const Json* list, f.array("extents"));
  std::vector<ExpertExtent> out;
  for (const Json& v : *list) {
    const std::string who =
        f.where() + ": layer " + std::to_string(layer) + " expert " + std::to_string(out.size());
    if (!v.is_array() || v.size() != 2 || !v[0].is_number_unsigned())
      return invalid(who + ": is not [offset, checksum]");
    ExpertExtent x;
    x.offset = v[0].get<std::uint64_t>();
    WISP_ASSIGN(x.checksum, parse_hex(v[1], who));
    out.push_back(x);
  }
  return out;
}

Status parse_extents(const Fields& f, std::uint32_t layer, Manifest& m, ExtentLists& cut, LayerExperts& out) {
  WISP_ASSIGN(out.file, parse_file_name(f, "file"));
  const Json* v = f.find("extents");
  if (v != nullptr && v->is_number_unsigned() && v->get<std::uint64_t>() < cut.lists.size()) {
    out.extents = std::exchange(cut.lists[v->get<std::uint64_t>()], {});
  } else {
    WISP_ASSIGN(out.extents, parse_extent_list(f, layer));
  }
  if (out.extents.size() != m.spec.router.experts) {
    return f.wrong("extents", "has " + std::to_string(out.extents.size()) + " entries, the model " +
                                  std::to_string(m.spec.router.experts) + " experts");
  }
  std::vector<std::uint64_t> offsets;
  offsets.reserve(out.extents.size());
  for (const ExpertExtent& x : out.extents) {
    if (x.offset % kExtentAlign != 0 || x.offset > std::uint64_t{1} << 60) {
      return invalid(f.where() + ": layer " + std::to_string(layer) + " expert " +
                     std::to_string(offsets.size()) + ": offset " + std::to_string(x.offset) +
                     " is not a multiple of 4096 or too large");
    }
    offsets.push_back(x.offset);
  }
  if (!std::is_sorted(offsets.begin(), offsets.end())) std::sort(offsets.begin(), offsets.end());
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] - offsets[i - 1] < m.spec.expert.stride) return f.wrong("extents", "overlap");
  }
  return {};
}

Status parse_experts(const Fields& root, Manifest& m, ExtentLists& cut) {
  WISP_ASSIGN(const Json* list, root.array("experts"));
  if (list->size() != m.spec.layers.size()) {
    return root.wrong("experts", "has " + std::to_string(list->size()) + " entries, the model " +
                                     std::to_string(m.spec.layers.size()) + " layers");
  }
  std::set<std::string> files;
  for (std::uint32_t i = 0; i < list->size(); ++i) {
    const Json& v = (*list)[i];
    LayerExperts layer;
    if (v.is_null() != !m.spec.layers[i].moe || !(v.is_null() || v.is_object())) {
      return root.wrong("experts", "and layers disagree on layer " + std::to_string(i));
    }
    if (v.is_object()) {
      WISP_TRY(parse_extents(Fields(v, root.where() + ": experts " + std::to_string(i)), i, m, cut, layer));
      if (!files.insert(layer.file).second)
        return root.wrong("experts", "names " + printable(layer.file) + " twice");
    }
    m.experts.push_back(std::move(layer));
  }
  return {};
}

Status parse_generation(const Fields& root, Manifest& m) {
  WISP_ASSIGN(const Fields f, root.object("generation"));
  auto& g = m.generation;
  WISP_ASSIGN(g.sample, f.boolean("sample"));
  WISP_ASSIGN(const double temperature, f.number("temperature", 0.0, 100.0));
  WISP_ASSIGN(g.top_k, f.u32("top_k", 0, kMaxVocab));
  WISP_ASSIGN(const double top_p, f.number("top_p", 0.0, 1.0));
  WISP_ASSIGN(const double min_p, f.number("min_p", 0.0, 1.0));
  // Folders of earlier versions do not have it.
  WISP_ASSIGN(const double repetition,
              f.number_or("repetition_penalty", 1.0, kLeastRepetitionPenalty, kMostRepetitionPenalty));
  g.repetition_penalty = static_cast<float>(repetition);
  g.temperature = static_cast<float>(temperature);
  g.top_p = static_cast<float>(top_p);
  g.min_p = static_cast<float>(min_p);
  WISP_ASSIGN(const Json* eos, f.array("eos"));
  if (eos->size() > kMaxStopIds) return f.wrong("eos", "has " + std::to_string(eos->size()) + " entries");
  for (const auto& id : *eos) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= m.spec.vocab) {
      return f.wrong("eos", "holds an id outside the vocabulary");
    }
    g.eos.push_back(id.get<std::uint32_t>());
  }
  return {};
}

Status parse_texts(const Fields& root, Manifest& m) {
  if (!root.has("texts")) return root.wrong("texts", "is missing; convert the model again");
  WISP_ASSIGN(const Fields f, root.object("texts"));
  for (const auto& [name, value] : f.json().items()) {
    if (!is_file_name(name) || !value.is_object())
      return f.wrong(printable(name), "is not a file with its size and checksum");
    const Fields entry(value, f.where() + ": " + printable(name));
    TextFile t;
    WISP_ASSIGN(t.bytes, entry.u64("bytes", 0, std::uint64_t{1} << 40));
    const Json* sum = entry.find("checksum");
    WISP_ASSIGN(t.checksum, parse_hex(sum ? *sum : Json(), entry.where() + ": checksum"));
    m.texts.emplace(name, t);
  }
  return {};
}

/// The part `draft_head`, absent where there is none.
Status parse_draft_head(const Fields& root, Manifest& m, ExtentLists& cut) {
  if (!root.has("draft_head")) return {};
  WISP_ASSIGN(const Fields f, root.object("draft_head"));
  Manifest head;
  WISP_ASSIGN(const Fields spec, f.object("spec"));
  WISP_TRY(parse_spec(spec, head.spec));
  if (auto checked = check_draft_head(head.spec, m.spec); !checked.ok())
    return std::move(checked).error().within(f.where());
  WISP_ASSIGN(const Fields dense, f.object("dense"));
  WISP_TRY(parse_dense(dense, head));
  WISP_TRY(parse_experts(f, head, cut));
  const Json* hash = f.find("hash");
  WISP_ASSIGN(head.model_hash, parse_hex(hash ? *hash : Json(), f.where() + ": hash"));
  if (head.model_hash != hash_of_weights(head))
    return corrupt(f.where() + ": hash does not go with the checksums; convert the model again");
  m.draft_head.push_back(std::move(head));
  return {};
}

Status check_file(const std::string& folder, const std::string& file, std::uint64_t need) {
  const std::string path = folder + "/" + file;
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) {
    if (errno == ENOENT) return not_found(path + ": is missing; convert the model again");
    return io_error(path + ": " + std::strerror(errno));
  }
  if (!S_ISREG(st.st_mode)) return invalid(path + ": not a regular file");
  if (static_cast<std::uint64_t>(st.st_size) < need) {
    return invalid(path + ": has " + std::to_string(st.st_size) + " bytes, the manifest needs " +
                   std::to_string(need) + "; convert the model again");
  }
  return {};
}

Status check_files(const std::string& folder, const Manifest& m) {
  WISP_TRY(check_file(folder, m.dense_file, m.dense_file_offset + m.dense_bytes));
  for (const auto& layer : m.experts) {
    std::uint64_t end = 0;
    for (const auto& x : layer.extents) end = std::max(end, x.offset + m.spec.expert.stride);
    if (!layer.extents.empty()) WISP_TRY(check_file(folder, layer.file, end));
  }
  return {};
}

}  // namespace

std::uint64_t hash_of_weights(const Manifest& m) {
  std::string all = spec_json(m.spec).dump();
  all.reserve(all.size() + 16 * std::size_t{m.spec.expert_count()} + 64 * m.dense.size());
  const auto add = [&all](std::uint64_t n) {
    char bytes[8];
    for (unsigned i = 0; i < 8; ++i) bytes[i] = static_cast<char>(n >> (8 * i) & 0xff);
    all.append(bytes, sizeof bytes);
  };
  for (const auto& [name, t] : m.dense) {
    all += name;
    all.push_back('\0');
    add(t.checksum);
  }
  for (std::uint32_t i = 0; i < m.experts.size(); ++i) {
    for (const auto& x : m.experts[i].extents) {
      add(i);
      add(x.checksum);
    }
  }
  return XXH3_64bits(all.data(), all.size());
}

bool multiplies_bytes(const Manifest& m) {
  const auto takes = [](const DenseTensor& t) { return t.tiled && kernels::takes_int8(t.format); };
  return (m.spec.expert_count() != 0 && (kernels::takes_int8(m.spec.expert.gate.format) ||
                                         kernels::takes_int8(m.spec.expert.down.format))) ||
         std::any_of(m.dense.begin(), m.dense.end(), [&](const auto& entry) { return takes(entry.second); });
}

std::string profile_reason(const Manifest& m) {
  if (!multiplies_bytes(m)) return "no weight is int4, int8 or MXFP4: fast would be the same";
  if (m.profile == "fast") return "measured on " + m.fast_measured_on + ", within limits";
  if (m.fast_measured_on.empty()) return "no measurement of fast stands in this folder";
  return "fast lost more than it may on " + m.fast_measured_on;
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view folder) {
  ExtentLists cut = cut_extent_lists(text);
  auto json = parse_json_object(cut.rest, std::string(kFile));
  if (!json.ok()) {  // said of the text as it is: with its own positions
    cut = {};
    json = parse_json_object(text, std::string(kFile));
    if (!json.ok()) return std::move(json).error();
  }
  const Fields root(*json, std::string(kFile));
  Manifest m;
  WISP_ASSIGN(m.layout_version, root.u32("layout_version", 0, UINT32_MAX));
  if (m.layout_version != kLayoutVersion) {
    return unsupported(std::string(kFile) + ": layout_version " + std::to_string(m.layout_version) +
                       ", this build reads " + std::to_string(kLayoutVersion) +
                       "; lay the checkpoint out again: wisp convert --force CHECKPOINT " +
                       std::string(folder));
  }
  WISP_ASSIGN(m.name, root.text("name"));
  WISP_ASSIGN(m.profile, root.text("profile"));
  if (m.profile != "exact" && m.profile != "fast") {
    return unsupported(std::string(kFile) + ": profile " + printable(m.profile) + " is unknown");
  }
  WISP_ASSIGN(m.fast_measured_on, root.text_or("fast_measured_on", ""));
  WISP_ASSIGN(const Fields spec, root.object("spec"));
  WISP_TRY(parse_spec(spec, m.spec));
  WISP_TRY(parse_generation(root, m));
  WISP_TRY(parse_texts(root, m));
  WISP_ASSIGN(const Fields dense, root.object("dense"));
  WISP_TRY(parse_dense(dense, m));
  WISP_TRY(parse_experts(root, m, cut));
  const Json* hash = root.find("model_hash");
  WISP_ASSIGN(m.model_hash, parse_hex(hash ? *hash : Json(), std::string(kFile) + ": model_hash"));
  if (m.spec.draft_head) return spec.wrong("draft_head", "is set on a model");
  WISP_TRY(parse_draft_head(root, m, cut));
  if (m.model_hash != hash_of_weights(m)) {
    return corrupt(std::string(kFile) +
                   ": model_hash does not go with the checksums; convert the model again");
  }
  return m;
}

Result<Manifest> load_manifest(const std::string& folder) {
  const std::string path = folder + "/" + std::string(kFile);
  auto text = read_text_file(path);
  if (!text.ok()) {
    struct stat st {};
    if (text.error().code == ErrorCode::kNotFound && ::stat((folder + "/config.json").c_str(), &st) == 0)
      return not_found(folder +
                       ": is a checkpoint that is not converted yet; convert it once: wisp convert " +
                       folder + " DST");
    return std::move(text).error();
  }
  auto parsed = parse_manifest(*text, folder);
  if (!parsed.ok()) return std::move(parsed).error().within(folder);
  WISP_TRY(check_files(folder, *parsed));
  for (const Manifest& head : parsed->draft_head) WISP_TRY(check_files(folder, head));
  return parsed;
}

}  // namespace wisp::model
