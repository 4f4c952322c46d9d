#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "base/fd.hpp"
#include "model/json.hpp"
#include "model/limits.hpp"
#include "model/safetensors.hpp"
#include "model/stripe_files.hpp"

namespace wisp::model {
namespace {

namespace fs = std::filesystem;

/// Writes a small file so that it is there whole or not at all.
Status write_whole(const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial-" + std::to_string(::getpid());
  std::error_code ec;
  fs::remove(partial, ec);
  const Status written = [&]() -> Status {
    WISP_ASSIGN(OutputFile file, OutputFile::create(partial));
    WISP_TRY(file.write(text));
    WISP_TRY(file.close_durably());
    if (::rename(partial.c_str(), path.c_str()) != 0) return os_error(path, "rename");
    return {};
  }();
  if (!written.ok()) fs::remove(partial, ec);
  return written;
}

/// Tells the model folder where its stripes are.
Status note_folders(const std::string& folder, const std::vector<Stripe>& stripes) {
  Json folders = Json::array();
  for (const Stripe& s : stripes) folders.push_back(s.folder);
  return write_whole(folder + "/" + kStripesFile, Json{{"folders", folders}}.dump(1) + "\n");
}

Result<std::string> absolute(const std::string& path) {
  std::error_code ec;
  fs::path p = fs::absolute(path, ec).lexically_normal();
  if (ec) return io_error(path + ": " + ec.message());
  if (!p.has_filename()) p = p.parent_path();
  return p.string();
}

/// Whether `path`, which need not be there, lies in `folder` or is it; links are followed.
bool lies_in(const fs::path& path, const fs::path& folder) {
  std::error_code ec;
  const fs::path outer = fs::weakly_canonical(folder, ec), inner = fs::weakly_canonical(path, ec);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

/// Whether there is nothing in `path` but what a StripeWriter puts there.
bool is_leftover(const fs::path& path) {
  std::error_code ec;
  for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    const bool part = name.starts_with("experts-") && name.find(".stripe-") != name.npos;
    if (!part && !name.starts_with(kStripeFile)) return false;
  }
  return !ec;
}

/// Removes the `<folder>.partial-PID` of runs that were killed: their lock is free.
Status remove_leftovers(const std::string& folder) {
  const fs::path path(folder);
  const std::string prefix = path.filename().string() + ".partial-";
  std::vector<fs::path> found;
  std::error_code ec;
  for (fs::directory_iterator it(path.parent_path(), ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == name.npos)
      found.push_back(it->path());
  }
  for (const fs::path& p : found) {
    const Fd fd(::open(p.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd.valid() || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || !is_leftover(p)) continue;
    fs::remove_all(p, ec);
    if (ec) return os_error(p.string(), "remove", ec.value());
  }
  return {};
}

/// A stripe being written: under `<folder>.partial-PID` until it is whole, and gone if that never happens.
class StripeWriter {
 public:
  StripeWriter(Stripe& stripe, std::string partial) : stripe_(stripe), partial_(std::move(partial)) {}
  StripeWriter(StripeWriter&& other) noexcept
      : stripe_(other.stripe_),
        partial_(std::exchange(other.partial_, {})),
        lock_(std::move(other.lock_)),
        file_(std::move(other.file_)) {}
  StripeWriter& operator=(StripeWriter&&) = delete;
  ~StripeWriter() {
    std::error_code ec;
    if (!partial_.empty()) fs::remove_all(partial_, ec);
  }

  static Result<StripeWriter> begin(Stripe& s, std::uint64_t experts) {
    std::error_code ec;
    if (fs::exists(fs::symlink_status(s.folder, ec)))
      return invalid(s.folder +
                     ": exists; name a folder that does not, on the drive that shall hold the stripe");
    WISP_TRY(remove_leftovers(s.folder));
    const std::string partial = s.folder + ".partial-" + std::to_string(::getpid());
    if (::mkdir(partial.c_str(), 0777) != 0) return os_error(partial, "create");
    StripeWriter w(s, partial);
    w.lock_.reset(::open(partial.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!w.lock_.valid() || ::flock(w.lock_.get(), LOCK_EX | LOCK_NB) != 0) return os_error(partial, "lock");
    struct statvfs room {};
    const std::uint64_t need = experts * s.bytes();
    if (::statvfs(partial.c_str(), &room) == 0 && std::uint64_t{room.f_bavail} * room.f_frsize < need)
      return exhausted(s.folder + ": " + std::to_string(need) + " bytes are needed there, " +
                       std::to_string(std::uint64_t{room.f_bavail} * room.f_frsize) + " are free");
    return w;
  }

  Status begin_layer(std::uint32_t layer) {
    char name[40];
    std::snprintf(name, sizeof name, "experts-%05u.stripe-%u", layer, stripe_.part + 1);
    stripe_.files[layer] = name;
    WISP_ASSIGN(OutputFile file, OutputFile::create(partial_ + "/" + name));
    file_ = std::move(file);
    return {};
  }
  Status add(std::uint32_t layer, std::span<const std::uint8_t> extent) {
    const auto part = extent.subspan(stripe_.begin, stripe_.bytes());
    stripe_.checksums[layer].push_back(XXH3_64bits(part.data(), part.size()));
    return file_->write(part);
  }
  Status end_layer() { return file_->close_durably(); }
  Status finish() {
    WISP_TRY(write_whole(partial_ + "/" + kStripeFile, write_stripe(stripe_)));
    if (::rename(partial_.c_str(), stripe_.folder.c_str()) != 0) return os_error(stripe_.folder, "rename");
    partial_.clear();
    return {};
  }

 private:
  Stripe& stripe_;
  std::string partial_;
  Fd lock_;  // of partial_, while its writer lives
  std::optional<OutputFile> file_;
};

Status copy_layer(const std::string& path, const Manifest& m, std::uint32_t layer,
                  std::vector<StripeWriter>& writers, const std::function<void(std::uint64_t)>& advance) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return os_error(path, "open");
  for (StripeWriter& w : writers) WISP_TRY(w.begin_layer(layer));
  std::vector<std::uint8_t> extent(m.spec.expert.stride);
  for (const ExpertExtent& x : m.experts[layer].extents) {
    WISP_TRY(read_exactly(fd.get(), x.offset, extent, path));
    if (XXH3_64bits(extent.data(), m.spec.expert.payload) != x.checksum)
      return corrupt(path + ", offset " + std::to_string(x.offset) +
                     ": the expert does not match its checksum; check the model with `wisp verify`");
    for (StripeWriter& w : writers) WISP_TRY(w.add(layer, extent));
    advance(extent.size());
  }
  for (StripeWriter& w : writers) WISP_TRY(w.end_layer());
  return {};
}

}  // namespace

Status make_stripes(const std::string& folder, const Manifest& m,
                    const std::vector<std::string>& destinations, const std::vector<double>& given,
                    const ProgressFn& progress) {
  if (m.spec.expert_count() == 0) return invalid(folder + ": has no experts that could be divided");
  if (destinations.empty() || destinations.size() >= kMaxStripes)
    return invalid("--to takes 1 to " + std::to_string(kMaxStripes - 1) + " folders");
  const std::vector<double> shares =
      given.empty() ? std::vector<double>(destinations.size() + 1, 1.0) : given;
  if (shares.size() != destinations.size() + 1)
    return invalid("--shares needs " + std::to_string(destinations.size() + 1) +
                   " numbers: the model folder's drive first, then one for each folder of --to");
  WISP_ASSIGN(const auto cuts, cut_extent(m.spec.expert.stride, shares));
  // Said before everything is copied: the folder has to remember where its stripes are.
  if (::access(folder.c_str(), W_OK) != 0) return os_error(folder, "write");

  std::random_device random;
  const std::uint64_t set = std::uint64_t{random()} << 32 | random();
  std::vector<Stripe> stripes(destinations.size());
  for (std::size_t i = 0; i < stripes.size(); ++i) {
    Stripe& s = stripes[i];
    WISP_ASSIGN(s.folder, absolute(destinations[i]));
    if (lies_in(s.folder, folder))
      return invalid("--to " + s.folder +
                     ": is inside the model folder; name one on the drive that shall hold the stripe");
    for (std::size_t j = 0; j < i; ++j)
      if (stripes[j].folder == s.folder) return invalid("--to names " + s.folder + " twice");
    s.model_hash = m.model_hash;
    s.set = set;
    s.part = static_cast<std::uint32_t>(i + 1);
    s.parts = static_cast<std::uint32_t>(stripes.size() + 1);
    s.begin = cuts[i + 1];
    s.end = cuts[i + 2];
    s.files.resize(m.experts.size());
    s.checksums.resize(m.experts.size());
  }
  std::vector<StripeWriter> writers;
  for (Stripe& s : stripes) {
    WISP_ASSIGN(StripeWriter w, StripeWriter::begin(s, m.spec.expert_count()));
    writers.push_back(std::move(w));
  }
  std::uint64_t done = 0;
  const std::uint64_t total = m.spec.expert_count() * std::uint64_t{m.spec.expert.stride};
  const auto advance = [&](std::uint64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  };
  for (std::uint32_t l = 0; l < m.experts.size(); ++l)
    if (!m.experts[l].extents.empty())
      WISP_TRY(copy_layer(folder + "/" + m.experts[l].file, m, l, writers, advance));
  for (StripeWriter& w : writers) WISP_TRY(w.finish());
  return note_folders(folder, stripes);
}

Status move_stripes(const std::string& folder, const Manifest& m,
                    const std::vector<std::string>& destinations) {
  std::vector<std::string> folders;
  for (const std::string& d : destinations) {
    WISP_ASSIGN(std::string path, absolute(d));
    folders.push_back(std::move(path));
  }
  WISP_ASSIGN(const auto stripes, load_stripes_of(folder, m, folders));
  return note_folders(folder, stripes);
}

Status drop_stripes(const std::string& folder) {
  const std::string path = folder + "/" + kStripesFile;
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return os_error(path, "remove");
  return {};
}

}  // namespace wisp::model
