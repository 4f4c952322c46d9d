#include "services/cli/draft_cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "model/manifest.hpp"
#include "model/verify.hpp"
#include "services/loader/state_file.hpp"

namespace wisp::cli {

namespace fs = std::filesystem;

namespace {

constexpr int kLookMs = 200;
/// Longer names leave too little of a file name's 255 bytes for what follows.
constexpr std::size_t kMaxName = 128;
constexpr std::string_view kPartial = ".partial-";

std::string hex(std::uint64_t n) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(n));
  return text;
}

Error errno_of(const fs::path& path) {
  return io_error(path.string() + ": " + std::strerror(errno));
}

Fd open_folder(const fs::path& path) {
  return Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

/// "NAME-0123456789abcdef", or such a folder in the making.
bool is_conversion(std::string_view name) {
  if (const auto at = name.rfind(kPartial); at != name.npos) {
    if (name.find_first_not_of("0123456789", at + kPartial.size()) != name.npos) return false;
    name = name.substr(0, at);
  }
  const auto dash = name.rfind('-');
  return dash != name.npos && name.size() - dash == 17 &&
         name.find_first_not_of("0123456789abcdef", dash + 1) == name.npos;
}

/// The lock of one checkpoint's conversions.
Result<Fd> lock(const fs::path& folder, const DraftCacheEvents& events) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return io_error(folder.string() + ": " + error.message());
  Fd fd = open_folder(folder);
  if (!fd.valid()) return errno_of(folder);
  bool told = false;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return errno_of(folder);
    if (!told && events.waiting) events.waiting();
    told = true;
    if (!events.stop) {
      while (::flock(fd.get(), LOCK_EX) != 0)
        if (errno != EINTR) return errno_of(folder);
      break;
    }
    if (events.stop(kLookMs)) return interrupted("interrupted while another process was at the draft");
  }
  return fd;
}

/// Whether a process holds a conversion. Who has the lock above it may go by the answer: nobody else takes
/// hold of it meanwhile but by its own name.
bool in_use(const fs::path& path) {
  const Fd fd = open_folder(path);
  return fd.valid() && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;
}

/// Removes the conversions in `folder` but `current` and what may become it. What cannot be removed costs
/// room, nothing else.
void remove_stale(const fs::path& folder, const std::string& current) {
  std::vector<fs::path> stale;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool ours = name == current || name.starts_with(current + std::string(kPartial));
    if (!ours && is_conversion(name)) stale.push_back(it->path());
  }
  for (const fs::path& path : stale)
    if (fs::is_directory(fs::symlink_status(path, error)) && !in_use(path)) fs::remove_all(path, error);
}

/// Whether a conversion is as it was made, as far as that is told without reading its weights: whoever loads
/// them holds them against their checksums.
Status check(const fs::path& folder) {
  WISP_ASSIGN(const model::Manifest m, model::load_manifest(folder.string()));
  return model::verify_texts(folder.string(), m);
}

}  // namespace

Result<HeldDraft> hold_draft(const std::string& folder) {
  Fd fd = open_folder(folder);
  if (!fd.valid() || ::flock(fd.get(), LOCK_SH) != 0) return errno_of(folder);
  return HeldDraft{folder, std::move(fd)};
}

std::string drafts_path() {
  const std::string folder = loader::state_folder();
  return folder.empty() ? "" : folder + "/drafts";
}

Result<HeldDraft> cached_draft(const std::string& source, const std::string& root,
                               const DraftCacheEvents& events) {
  std::error_code error;
  const std::string checkpoint = fs::canonical(source, error).string();
  if (error) return io_error(source + ": " + error.message());
  const fs::path folder = fs::path(root) / hex(XXH3_64bits(checkpoint.data(), checkpoint.size()));
  WISP_ASSIGN(const Fd locked, lock(folder, events));
  WISP_ASSIGN(const model::ConvertEstimate what, model::estimate(checkpoint));
  const std::string name = (what.name.size() > kMaxName ? "draft" : what.name) + "-" + hex(what.key);
  const fs::path place = folder / name;
  remove_stale(folder, name);

  std::string why;
  if (fs::exists(fs::symlink_status(place, error))) {
    const Status checked = check(place);
    if (checked.ok()) return hold_draft(place.string());
    // What cannot be read now may be read later.
    if (checked.error().code == ErrorCode::kIo || checked.error().code == ErrorCode::kExhausted)
      return checked.error();
    why = checked.error().text;
    if (in_use(place))
      return unavailable(why + ": " + place.string() +
                         " is damaged, and another process uses it; end that first");
  }
  if (events.converting) WISP_TRY(events.converting(place.string(), what, why));
  fs::remove_all(place, error);
  if (error) return io_error(place.string() + ": " + error.message());
  model::ConvertOptions options;
  options.source = checkpoint;
  options.destination = place.string();
  if (events.stop) options.stop = [&events] { return events.stop(0); };
  WISP_ASSIGN(const model::ConvertReport report, model::convert(options, events.progress));
  if (events.converted) events.converted(report);
  return hold_draft(place.string());
}

}  // namespace wisp::cli
