#include "model/checkpoint.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "model/json.hpp"

namespace wisp::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

/// `prefix-00002-of-00005.safetensors`
struct ShardName {
  std::string prefix;
  std::uint32_t number = 0, of = 0;
};

std::optional<ShardName> shard_name(std::string_view name) {
  constexpr std::string_view kEnd = ".safetensors";
  constexpr std::size_t kTail = 15;  // "-00002-of-00005" without the extension
  if (!name.ends_with(kEnd)) return std::nullopt;
  name.remove_suffix(kEnd.size());
  if (name.size() <= kTail) return std::nullopt;
  const std::string_view tail = name.substr(name.size() - kTail);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-") return std::nullopt;
  ShardName s{std::string(name.substr(0, name.size() - kTail)), 0, 0};
  for (std::size_t i = 0; i < 5; ++i) {
    const char a = tail[1 + i], b = tail[10 + i];
    if (a < '0' || a > '9' || b < '0' || b > '9') return std::nullopt;
    s.number = s.number * 10 + static_cast<std::uint32_t>(a - '0');
    s.of = s.of * 10 + static_cast<std::uint32_t>(b - '0');
  }
  return s;
}

std::string shard_file(const ShardName& s, std::uint32_t number) {
  char tail[64];
  std::snprintf(tail, sizeof tail, "-%05u-of-%05u.safetensors", number, s.of);
  return s.prefix + tail;
}

struct Listing {
  std::vector<std::string> safetensors;
  std::string foreign;  ///< a weight file of a kind that is not read
  bool index = false;
};

Result<Listing> list_folder(const std::string& folder) {
  std::error_code ec;
  if (!fs::is_directory(folder, ec)) return not_found(folder + ": no such folder");
  Listing out;
  for (auto it = fs::directory_iterator(folder, ec); !ec && it != fs::directory_iterator();
       it.increment(ec)) {
    std::string name = it->path().filename().string();
    if (name == kIndex)
      out.index = true;
    else if (name.ends_with(".safetensors"))
      out.safetensors.push_back(std::move(name));
    else if (name.ends_with(".bin") || name.ends_with(".gguf") || name.ends_with(".pth"))
      out.foreign = name;
  }
  if (ec) return io_error(folder + ": " + ec.message());
  std::sort(out.safetensors.begin(), out.safetensors.end());
  return out;
}

/// The files of a folder without an index: the single file, a whole set of shards, or the only one there is.
Result<std::vector<std::string>> files_without_index(const std::string& folder, const Listing& list) {
  const auto& names = list.safetensors;
  std::optional<ShardName> set;
  for (const auto& name : names) {
    const auto s = shard_name(name);
    if (!s) continue;
    if (set && (set->prefix != s->prefix || set->of != s->of)) {
      return invalid(folder + ": holds shards of two sets (" + shard_file(*set, set->number) + " and " +
                     name + "); remove the stale one");
    }
    set = s;
  }
  const bool single = std::find(names.begin(), names.end(), kSingle) != names.end();
  if (single && set) {
    return invalid(folder + ": holds both " + std::string(kSingle) + " and shards such as " +
                   shard_file(*set, set->number) + "; remove the stale one");
  }
  if (single) return std::vector<std::string>{std::string(kSingle)};
  if (set) {
    if (set->of == 0 || set->of > kMaxShards)
      return invalid(folder + ": claims " + std::to_string(set->of) + " shards");
    std::vector<std::string> out;
    for (std::uint32_t i = 1; i <= set->of; ++i) {
      out.push_back(shard_file(*set, i));
      if (!std::binary_search(names.begin(), names.end(), out.back())) {
        return not_found(folder + ": shard " + out.back() + " is missing; download it");
      }
    }
    return out;
  }
  if (names.size() == 1) return names;
  if (names.empty() && !list.foreign.empty()) {
    return unsupported(folder + ": holds " + list.foreign +
                       " but no .safetensors file; convert it to safetensors first");
  }
  return not_found(folder + (names.empty()
                                 ? ": holds no .safetensors file"
                                 : ": holds several .safetensors files, none called model.safetensors"));
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  WISP_ASSIGN(const Listing list, list_folder(folder));
  Checkpoint c;
  c.folder_ = folder;
  if (!list.index) {
    WISP_ASSIGN(const std::vector<std::string> names, files_without_index(folder, list));
    c.files_.reserve(names.size());
    for (const auto& name : names) WISP_TRY(c.add_file(name));
    return c;
  }

  const std::string path = folder + "/" + std::string(kIndex);
  WISP_ASSIGN(const std::string text, read_text_file(path));
  WISP_ASSIGN(const Json json, parse_json_object(text, path));
  WISP_ASSIGN(const Fields map, Fields(json, path).object("weight_map"));
  std::unordered_map<std::string, std::string> weight_map;
  std::set<std::string> shards;
  for (const auto& [tensor, file] : map.json().items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    // A path in the index could name any file of the machine.
    if (name.empty() || name.find('/') != name.npos || name == "..") {
      return invalid(path + ": tensor " + printable(tensor) + " is in " + printable(file.dump()) +
                     ", which is not a file name");
    }
    shards.insert(name);
    weight_map.emplace(tensor, name);
  }
  if (shards.empty() || shards.size() > kMaxShards) {
    return invalid(path + ": names " + std::to_string(shards.size()) + " shards; allowed is 1 to " +
                   std::to_string(kMaxShards));
  }
  if (!shards.contains(std::string(kSingle)) &&
      std::binary_search(list.safetensors.begin(), list.safetensors.end(), kSingle)) {
    return invalid(folder + ": holds " + std::string(kSingle) +
                   " beside an index that does not name it; remove the stale one");
  }
  const std::vector<std::string> names(shards.begin(), shards.end());
  c.files_.reserve(names.size());
  for (const auto& name : names) {
    if (!std::binary_search(list.safetensors.begin(), list.safetensors.end(), name)) {
      return not_found(folder + ": shard " + printable(name) +
                       ", which the index names, is missing; download it");
    }
    WISP_TRY(c.add_file(name));
  }
  WISP_TRY(c.check_index(weight_map, names));
  return c;
}

Status Checkpoint::add_file(const std::string& name) {
  WISP_ASSIGN(SafetensorsFile file, SafetensorsFile::open(folder_ + "/" + name));
  files_.push_back(std::move(file));  // reserved before: entries point into it
  const auto index = static_cast<std::uint32_t>(files_.size() - 1);
  for (const auto& t : files_.back().header().tensors) {
    const auto [it, fresh] = by_name_.emplace(t.name, entries_.size());
    if (!fresh) {
      return invalid(folder_ + ": tensor " + printable(t.name) + " is stored twice, in " +
                     file_of(entries_[it->second]) + " and in " + name);
    }
    entries_.push_back({&t, index});
    bytes_ += t.bytes;
  }
  return {};
}

Status Checkpoint::check_index(const std::unordered_map<std::string, std::string>& weight_map,
                               const std::vector<std::string>& names) {
  const std::string stale = folder_ + "/" + std::string(kIndex) + ": stale index: tensor ";
  for (const auto& [tensor, file] : weight_map) {
    const Entry* e = find(tensor);
    if (!e || names[e->file] != file) {
      return invalid(stale + printable(tensor) + " is not in " + file +
                     (e ? " but in " + names[e->file] : std::string()) + "; download the folder again");
    }
  }
  for (const auto& e : entries_) {
    if (!weight_map.contains(e.info->name)) {
      return invalid(stale + printable(e.info->name) + " is in " + names[e.file] +
                     " but not in the index; remove the index to go by the files");
    }
  }
  return {};
}

const Checkpoint::Entry* Checkpoint::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &entries_[it->second];
}

}  // namespace wisp::model
