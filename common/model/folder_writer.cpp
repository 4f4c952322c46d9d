#include "model/folder_writer.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "model/limits.hpp"
#include "wisp/kernels/relayout.hpp"

namespace wisp::model {
namespace {

namespace fs = std::filesystem;

/// Rows of a dense tensor are taken in groups of about this many bytes of f32, which they may pass through.
constexpr std::uint64_t kRowGroupBytes = std::uint64_t{16} << 20;

Status sync_folder(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return os_error(path, "fsync");
  return {};
}

/// A folder that a dead run left, and its lock.
struct Leftover {
  fs::path path;
  Fd lock;
};

/// Whether a run of ours made this folder: the number of a process behind the prefix, and a log in it.
bool is_leftover(const fs::path& path, std::size_t prefix) {
  const std::string number = path.filename().string().substr(prefix);
  const bool digits = !number.empty() && number.find_first_not_of("0123456789") == number.npos;
  std::error_code ec;
  return digits && fs::is_regular_file(path / ResumeLog::kFile, ec);
}

/// Finds `<dst>.partial-PID` of dead runs (their lock is free), gives one that belongs to `key` and removes
/// the others.
Result<std::optional<Leftover>> sort_leftovers(const fs::path& dst, std::uint64_t key) {
  const std::string prefix = dst.filename().string() + ".partial-";
  std::vector<fs::path> found;
  std::error_code ec;
  for (auto it = fs::directory_iterator(dst.parent_path(), ec); !ec && it != fs::directory_iterator();
       it.increment(ec)) {
    if (it->path().filename().string().starts_with(prefix) && is_leftover(it->path(), prefix.size()))
      found.push_back(it->path());
  }
  if (ec) return io_error(dst.parent_path().string() + ": " + ec.message());
  std::optional<Leftover> kept;
  for (const auto& path : found) {
    Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd.valid()) continue;
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      return unavailable(path.string() + ": another run is writing this folder; wait for it or stop it");
    }
    if (!kept && ResumeLog::belongs(path, key)) {
      kept = Leftover{path, std::move(fd)};
      continue;
    }
    fs::remove_all(path, ec);
    if (ec) return io_error(path.string() + ": " + ec.message());
  }
  return kept;
}

/// Removes what `log` does not call finished. Returns the bytes of the rest.
Result<std::uint64_t> tidy(const std::string& folder, const ResumeLog& log) {
  std::uint64_t bytes = 0;
  std::vector<fs::path> unfinished;
  std::error_code ec;
  for (auto it = fs::directory_iterator(folder, ec); !ec && it != fs::directory_iterator();
       it.increment(ec)) {
    const std::string name = it->path().filename();
    if (name == ResumeLog::kFile) continue;
    if (log.find(name) == nullptr)
      unfinished.push_back(it->path());
    else
      bytes += it->file_size(ec);
  }
  for (const auto& path : unfinished)
    if (!ec) fs::remove_all(path, ec);
  if (ec) return io_error(folder + ": " + ec.message());
  return bytes;
}

Status check_destination(const fs::path& dst, bool force) {
  std::error_code ec;
  if (!fs::exists(fs::symlink_status(dst, ec))) return {};
  if (!force) return invalid(dst.string() + ": exists; choose another name or replace it with --force");
  const bool folder = fs::is_directory(fs::symlink_status(dst, ec));
  if (!folder || (!fs::is_empty(dst, ec) && !fs::exists(dst / "manifest.json", ec)))
    return invalid(dst.string() + ": is not a WISP model folder, so --force does not replace it");
  // What else lies there would go with it.
  for (auto it = fs::directory_iterator(dst, ec); !ec && it != fs::directory_iterator(); it.increment(ec)) {
    const std::string kind = it->path().extension().string();
    if (it->is_regular_file(ec) &&
        (kind == ".safetensors" || kind == ".json" || kind == ".jinja" || kind == ".model"))
      continue;
    return invalid(it->path().string() + ": is no part of a model folder, so --force does not replace " +
                   dst.string() + "; move it away");
  }
  return {};
}

Status check_room(const fs::path& parent, std::uint64_t need, std::optional<std::uint64_t> free_bytes) {
  if (!free_bytes) {
    struct statvfs st {};
    if (::statvfs(parent.c_str(), &st) != 0) return os_error(parent.string(), "statvfs");
    free_bytes = std::uint64_t{st.f_bavail} * st.f_frsize;
  }
  if (need <= *free_bytes) return {};
  return exhausted(parent.string() + ": needs " + std::to_string(need) + " bytes, " +
                   std::to_string(*free_bytes) + " are free; " + std::to_string(need - *free_bytes) +
                   " more are needed");
}

}  // namespace

FolderWriter::FolderWriter(FolderWriter&& other) noexcept
    : dst_(std::move(other.dst_)),
      partial_(std::exchange(other.partial_, {})),
      lock_(std::move(other.lock_)),
      force_(other.force_),
      stopped_(other.stopped_),
      progress_(std::move(other.progress_)),
      stop_(std::move(other.stop_)),
      done_(other.done_),
      total_(other.total_),
      resumed_(other.resumed_),
      log_(std::move(other.log_)) {}

FolderWriter::~FolderWriter() {
  if (partial_.empty() || stopped_) return;
  std::error_code ec;
  fs::remove_all(partial_, ec);
}

Result<FolderWriter> FolderWriter::begin(const std::string& dst, bool force, std::uint64_t need_bytes,
                                         ProgressFn progress, std::optional<std::uint64_t> free_bytes,
                                         std::uint64_t key) {
  std::error_code ec;
  fs::path path = fs::absolute(dst, ec).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a trailing slash
  if (dst.empty() || ec || !path.has_filename())
    return invalid("'" + dst + "' is not a folder that can be written");
  if (!fs::is_directory(path.parent_path(), ec))
    return not_found(path.parent_path().string() + ": no such folder");
  WISP_TRY(check_destination(path, force));
  WISP_ASSIGN(auto left, sort_leftovers(path, key));

  FolderWriter w;
  w.dst_ = path.string();
  w.force_ = force;
  w.progress_ = std::move(progress);
  w.total_ = need_bytes;
  const std::string partial = w.dst_ + ".partial-" + std::to_string(::getpid());
  if (!left) {
    WISP_TRY(check_room(path.parent_path(), need_bytes, free_bytes));
    if (::mkdir(partial.c_str(), 0755) != 0) return os_error(partial, "mkdir");
    w.partial_ = partial;
    w.lock_.reset(::open(partial.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!w.lock_.valid() || ::flock(w.lock_.get(), LOCK_EX | LOCK_NB) != 0) return os_error(partial, "lock");
    WISP_ASSIGN(w.log_, ResumeLog::open(partial, key));
    return w;
  }
  if (left->path != partial && ::rename(left->path.c_str(), partial.c_str()) != 0)
    return os_error(left->path.string(), "rename");
  w.lock_ = std::move(left->lock);
  WISP_ASSIGN(w.log_, ResumeLog::open(partial, key));
  WISP_ASSIGN(const std::uint64_t there, tidy(partial, *w.log_));
  WISP_TRY(check_room(path.parent_path(), need_bytes - std::min(need_bytes, there), free_bytes));
  w.partial_ = partial;
  return w;
}

const std::vector<std::uint64_t>* FolderWriter::take_over(const std::string& file, std::uint64_t bytes,
                                                          std::size_t parts) {
  const auto* sums = log_->find(file);
  std::error_code ec;
  if (sums == nullptr || sums->size() != parts || fs::file_size(partial_ + "/" + file, ec) != bytes || ec) {
    fs::remove(partial_ + "/" + file, ec);
    return nullptr;
  }
  resumed_ += bytes;
  static_cast<void>(advance(bytes));  // the next piece stops
  return sums;
}

Status FolderWriter::advance(std::uint64_t bytes) {
  done_ += bytes;
  if (progress_) progress_(std::min(done_, total_), total_);
  if (!stop_ || !stop_()) return {};
  stopped_ = true;
  return interrupted(dst_ +
                     ": stopped while it was written; the next run goes on with the files that are whole");
}

Status DenseRows::order(std::size_t /*index*/, std::vector<std::uint32_t>& /*out*/) {
  return invalid("this source has no tensors with an order of their own");
}

/// Writes one tensor, a group of rows at a time; its scales follow its codes, so they are held meanwhile.
Status FolderWriter::write_dense_tensor(OutputFile& file, const DenseItem& item, std::size_t index,
                                        DenseTensor& t, DenseRows& source) {
  const std::vector<std::uint8_t> zeros(kPlaneAlign);
  std::vector<std::uint8_t> codes, tiles, row_scales, scales;
  const std::unique_ptr<XXH3_state_t, void (*)(XXH3_state_t*)> hash(
      XXH3_createState(), [](XXH3_state_t* s) { static_cast<void>(XXH3_freeState(s)); });
  WISP_CHECK(hash != nullptr);
  XXH3_64bits_reset(hash.get());
  std::uint64_t written = 0;
  const auto put = [&](std::span<const std::uint8_t> bytes) -> Status {
    XXH3_64bits_update(hash.get(), bytes.data(), bytes.size());
    written += bytes.size();
    WISP_TRY(advance(bytes.size()));
    return file.write(bytes);
  };
  if (item.matrix) scales.reserve(kernels::scales_bytes(item.format, item.rows, item.cols, item.group));
  const std::uint64_t row = kernels::row_bytes(item.format, item.cols);
  const std::uint32_t groups = kernels::groups_of(item.cols, item.group);
  const std::uint64_t scale_row = std::uint64_t{groups} * kernels::traits_of(item.format).scale_bytes;
  const auto step = static_cast<std::uint32_t>(
      std::max<std::uint64_t>(
          1, std::min<std::uint64_t>(item.rows, kRowGroupBytes / (std::uint64_t{item.cols} * 4)) /
                 kernels::kTileRows) *
      kernels::kTileRows);
  for (std::uint32_t first = 0; first < item.rows; first += step) {
    const std::uint32_t count = std::min(step, item.rows - first);
    codes.resize(count * row);
    row_scales.resize(kernels::scale_rows(item.format, count) * scale_row);
    WISP_TRY(source.rows(index, first, count, codes, row_scales));
    if (item.matrix) {
      tiles.resize(kernels::codes_bytes(item.format, count, item.cols));
      kernels::tile_codes(item.format, count, item.cols, codes.data(), tiles.data());
      const std::size_t held = scales.size();
      scales.resize(held + kernels::scales_bytes(item.format, count, item.cols, item.group));
      kernels::tile_scales(item.format, count, groups, row_scales.data(), scales.data() + held);
    }
    WISP_TRY(put(item.matrix ? tiles : codes));
  }
  const Planes planes = planes_of(t);
  if (planes.scales != 0) {
    WISP_TRY(put(std::span(zeros).first(planes.scales - written)));
    WISP_TRY(put(scales));
  }
  if (planes.order != 0) {
    std::vector<std::uint32_t> order;
    WISP_TRY(source.order(index, order));
    WISP_TRY(put(std::span(zeros).first(planes.order - written)));
    WISP_TRY(put({reinterpret_cast<const std::uint8_t*>(order.data()), order.size() * 4}));
  }
  WISP_CHECK(written == t.bytes);
  t.checksum = XXH3_64bits_digest(hash.get());
  return {};
}

Status FolderWriter::write_dense(const FolderLayout& layout, const std::vector<DenseItem>& items, Manifest& m,
                                 DenseRows& source) {
  const std::uint64_t bytes = layout.dense_header.size() + m.dense_bytes;
  if (const auto* sums = take_over(m.dense_file, bytes, items.size())) {
    for (std::size_t i = 0; i < items.size(); ++i) m.dense.at(items[i].name).checksum = (*sums)[i];
    return {};
  }
  std::vector<std::uint64_t> sums;
  WISP_ASSIGN(OutputFile file, OutputFile::create(partial_ + "/" + m.dense_file));
  WISP_TRY(file.write(layout.dense_header));
  const std::vector<std::uint8_t> zeros(kExtentAlign);
  std::uint64_t at = 0, padding = layout.dense_header.size() + m.dense_bytes;
  for (std::size_t i = 0; i < items.size(); ++i) {
    DenseTensor& t = m.dense.at(items[i].name);
    WISP_TRY(file.write(std::span(zeros).first(t.offset - at)));
    WISP_TRY(write_dense_tensor(file, items[i], i, t, source));
    sums.push_back(t.checksum);
    at = t.offset + t.bytes;
    padding -= t.bytes;
  }
  WISP_TRY(file.write(std::span(zeros).first(m.dense_bytes - at)));
  WISP_TRY(advance(padding));
  WISP_TRY(file.close_durably());
  return log_->add(m.dense_file, std::move(sums));
}

Status FolderWriter::write_experts(const FolderLayout& layout, std::uint32_t layer, Manifest& m,
                                   const FillExpert& fill) {
  LayerExperts& experts = m.experts[layer];
  const std::uint64_t bytes =
      layout.expert_headers[layer].size() + experts.extents.size() * std::uint64_t{m.spec.expert.stride};
  if (const auto* sums = take_over(experts.file, bytes, experts.extents.size())) {
    for (std::size_t e = 0; e < sums->size(); ++e) experts.extents[e].checksum = (*sums)[e];
    return {};
  }
  std::vector<std::uint64_t> sums;
  WISP_ASSIGN(OutputFile file, OutputFile::create(partial_ + "/" + experts.file));
  WISP_TRY(file.write(layout.expert_headers[layer]));
  std::vector<std::uint8_t> extent(m.spec.expert.stride);
  const auto payload = std::span(extent).first(m.spec.expert.payload);
  for (std::uint32_t e = 0; e < experts.extents.size(); ++e) {
    std::fill(payload.begin(), payload.end(), std::uint8_t{0});
    WISP_TRY(fill(e, payload));
    experts.extents[e].checksum = XXH3_64bits(payload.data(), payload.size());
    sums.push_back(experts.extents[e].checksum);
    WISP_TRY(file.write(extent));
    WISP_TRY(advance(extent.size()));
  }
  WISP_TRY(advance(layout.expert_headers[layer].size()));
  WISP_TRY(file.close_durably());
  return log_->add(experts.file, std::move(sums));
}

Status FolderWriter::write_text(const std::string& name, std::string_view text) {
  WISP_ASSIGN(OutputFile file, OutputFile::create(partial_ + "/" + name));
  WISP_TRY(file.write(text));
  WISP_TRY(advance(text.size()));
  return file.close_durably();
}

Status FolderWriter::finish(Manifest& m) {
  m.model_hash = hash_of_weights(m);
  WISP_TRY(write_text("manifest.json", write_manifest(m)));
  std::error_code ignored;
  fs::remove(partial_ + "/" + ResumeLog::kFile, ignored);
  WISP_TRY(sync_folder(partial_));
  const std::string parent = fs::path(dst_).parent_path().string();
  // Neither of the two ways replaces a folder that appeared in the meantime without --force.
  if (::syscall(SYS_renameat2, AT_FDCWD, partial_.c_str(), AT_FDCWD, dst_.c_str(), RENAME_NOREPLACE) == 0) {
    partial_.clear();
    return sync_folder(parent);
  }
  const bool no_flags = errno == EINVAL || errno == ENOSYS;  // a file system without renameat2
  if (!no_flags && errno != EEXIST) return os_error(dst_, "rename");
  if (force_)
    WISP_TRY(check_destination(dst_, true));
  else if (!no_flags || fs::exists(dst_))
    return invalid(dst_ + ": appeared while the model was written");
  if (force_ && !no_flags) {
    if (::syscall(SYS_renameat2, AT_FDCWD, partial_.c_str(), AT_FDCWD, dst_.c_str(), RENAME_EXCHANGE) != 0) {
      return os_error(dst_, "exchange");
    }
    // `partial_` now names the old folder; the destructor removes it.
    return sync_folder(parent);
  }
  std::error_code ec;
  if (force_) fs::remove_all(dst_, ec);
  if (ec) return io_error(dst_ + ": " + ec.message());
  if (::rename(partial_.c_str(), dst_.c_str()) != 0) return os_error(dst_, "rename");
  partial_.clear();
  return sync_folder(parent);
}

}  // namespace wisp::model
