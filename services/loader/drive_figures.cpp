#include "services/loader/drive_figures.hpp"

#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "model/json.hpp"
#include "services/loader/state_file.hpp"

namespace wisp::loader {

namespace fs = std::filesystem;
using model::Json;

namespace {

constexpr std::uint64_t kMaxBytes = 1u << 20;
constexpr std::uint64_t kLeastDepth = 4096, kMostDepth = std::uint64_t{1} << 30;

std::string first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  const auto begin = line.find_first_not_of(" \t");
  const auto end = line.find_last_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : line.substr(begin, end - begin + 1);
}

Result<Json> read_all(const std::string& path) {
  WISP_ASSIGN(const std::string text, model::read_text_file(path, kMaxBytes));
  return model::parse_json_object(text, path);
}

}  // namespace

std::string drive_identity(std::uint64_t device, const std::string& sys) {
  std::error_code error;
  fs::path disk = fs::canonical(
      sys + "/dev/block/" + std::to_string(major(device)) + ":" + std::to_string(minor(device)), error);
  if (error) return "";
  if (fs::exists(disk / "partition", error)) disk = disk.parent_path();
  std::string identity;
  for (const char* file : {"device/model", "device/serial", "serial", "device/wwid", "wwid", "dm/uuid",
                           "md/uuid", "loop/backing_file", "size"}) {
    const std::string value = first_line(disk / file);
    if (value.empty()) continue;
    identity += (identity.empty() ? "" : ", ") + fs::path(file).filename().string() + " " + value;
  }
  return identity;
}

std::string drive_identity(const std::vector<std::uint64_t>& devices, const std::string& sys) {
  std::vector<std::string> names;
  for (const std::uint64_t d : devices) {
    names.push_back(drive_identity(d, sys));
    if (names.back().empty()) return "";
  }
  std::sort(names.begin(), names.end());
  std::string all;
  for (const std::string& n : names) all += (all.empty() ? "" : " + ") + n;
  return all;
}

std::string drive_figures_path() {
  const std::string folder = state_folder();
  return folder.empty() ? "" : folder + "/drives.json";
}

Result<DriveFigure> load_drive_figure(const std::string& path, const std::string& identity,
                                      std::uint64_t stride) {
  WISP_ASSIGN(const Json all, read_all(path));
  const std::string size = std::to_string(stride);
  const model::Fields drives(all, path);
  if (!drives.has(identity)) return not_found(path + ": no figure of this drive");
  WISP_ASSIGN(const model::Fields drive, drives.object(identity));
  if (!drive.has(size)) return not_found(path + ": no figure for experts of " + size + " bytes");
  WISP_ASSIGN(const model::Fields f, drive.object(size));
  DriveFigure figure;
  WISP_ASSIGN(figure.depth, f.u64("depth_bytes", kLeastDepth, kMostDepth));
  WISP_ASSIGN(figure.pinned, f.boolean("registered_buffers"));
  WISP_ASSIGN(figure.bytes_per_s, f.number_or("bytes_per_s", 0, 0, 1e15));
  if (figure.bytes_per_s <= 0)
    return not_found(path + ": nothing was measured for experts of " + size + " bytes");
  return figure;
}

Status save_drive_figure(const std::string& path, const std::string& identity, std::uint64_t stride,
                         const DriveFigure& figure) {
  std::string text;
  return StateFile(path).update([&]() -> Result<std::string_view> {
    auto known = read_all(path);
    if (!known.ok() && known.error().code == ErrorCode::kIo) return std::move(known).error();
    Json all = known.ok() ? std::move(*known) : Json::object();
    if (!all[identity].is_object()) all[identity] = Json::object();
    all[identity][std::to_string(stride)] = {{"depth_bytes", figure.depth},
                                             {"registered_buffers", figure.pinned},
                                             {"bytes_per_s", static_cast<std::uint64_t>(figure.bytes_per_s)}};
    text = all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    return std::string_view(text);
  });
}

}  // namespace wisp::loader
