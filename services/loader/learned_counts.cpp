#include "services/loader/learned_counts.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "base/check.hpp"
#include "base/fd.hpp"

namespace wisp::loader {

namespace {

constexpr char kMagic[8] = {'W', 'I', 'S', 'P', 'L', 'R', 'N', '1'};
constexpr double kHalfLife = 4096;  // rows
constexpr double kDecayEvery = 64;  // rows
constexpr float kForgotten = 1e-3f;
constexpr double kMostRows = 1e9;

struct FileHead {
  char magic[8];
  std::uint64_t model_hash;
  std::uint32_t layers;
  std::uint32_t experts;
};
static_assert(sizeof(FileHead) == 24);

std::size_t file_size(std::uint32_t layers, std::uint32_t experts) {
  return sizeof(FileHead) + std::size_t{layers} * (sizeof(double) + std::size_t{experts} * sizeof(float)) +
         sizeof(std::uint64_t);
}

Error file_error(const std::string& path) {
  return io_error(path + ": " + std::strerror(errno));
}

}  // namespace

LearnedCounts::LearnedCounts(std::uint32_t layers, std::uint32_t experts)
    : layers_(layers),
      experts_(experts),
      counts_(std::size_t{layers} * experts, 0.0f),
      rows_(layers, 0.0),
      since_(layers, 0.0) {}

void LearnedCounts::pass(std::uint32_t layer, double rows) {
  rows_[layer] = std::min(kMostRows, rows_[layer] + rows);
  since_[layer] += rows;
  if (since_[layer] < kDecayEvery) return;
  const double keep = std::exp2(-since_[layer] / kHalfLife);
  since_[layer] = 0;
  rows_[layer] *= keep;
  float* const counts = counts_.data() + std::size_t{layer} * experts_;
  for (std::uint32_t e = 0; e < experts_; ++e) {
    counts[e] *= static_cast<float>(keep);
    if (counts[e] < kForgotten) counts[e] = 0;
  }
}

void LearnedCounts::add(std::uint32_t layer, std::uint32_t expert, std::uint32_t rows) {
  counts_[std::size_t{layer} * experts_ + expert] += static_cast<float>(rows);
}

float LearnedCounts::share(std::uint32_t layer, std::uint32_t expert) const {
  if (rows_[layer] <= 0) return 0;
  return std::min(1.0f, counts_[std::size_t{layer} * experts_ + expert] / static_cast<float>(rows_[layer]));
}

std::vector<std::uint32_t> LearnedCounts::most_wanted() const {
  std::vector<std::pair<float, std::uint32_t>> wanted;
  for (std::uint32_t l = 0; l < layers_; ++l)
    for (std::uint32_t e = 0; e < experts_; ++e)
      if (const float s = share(l, e); s > 0) wanted.emplace_back(-s, l << 16 | e);
  std::sort(wanted.begin(), wanted.end());
  std::vector<std::uint32_t> keys;
  keys.reserve(wanted.size());
  for (const auto& [s, key] : wanted) keys.push_back(key);
  return keys;
}

std::string LearnedCounts::encode(std::uint64_t model_hash) const {
  std::string out;
  encode(model_hash, out);
  return out;
}

void LearnedCounts::encode(std::uint64_t model_hash, std::string& out) const {
  FileHead head{{}, model_hash, layers_, experts_};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  out.assign(reinterpret_cast<const char*>(&head), sizeof head);
  out.append(reinterpret_cast<const char*>(rows_.data()), rows_.size() * sizeof(double));
  out.append(reinterpret_cast<const char*>(counts_.data()), counts_.size() * sizeof(float));
  const std::uint64_t sum = XXH3_64bits(out.data(), out.size());
  out.append(reinterpret_cast<const char*>(&sum), sizeof sum);
}

void LearnedCounts::clear() {
  std::ranges::fill(counts_, 0.0f);
  std::ranges::fill(rows_, 0.0);
  std::ranges::fill(since_, 0.0);
}

Status LearnedCounts::decode(std::string_view bytes, std::uint64_t model_hash) {
  clear();
  FileHead head;
  if (bytes.size() < sizeof head) return corrupt("shorter than its head");
  std::memcpy(&head, bytes.data(), sizeof head);
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0)
    return invalid("no file of learned counts, or of another version");
  if (head.model_hash != model_hash || head.layers != layers_ || head.experts != experts_)
    return invalid("learned from another model");
  if (bytes.size() != file_size(layers_, experts_))
    return corrupt(std::to_string(bytes.size()) + " bytes instead of " +
                   std::to_string(file_size(layers_, experts_)));
  std::uint64_t sum = 0;
  const std::size_t body = bytes.size() - sizeof sum;
  std::memcpy(&sum, bytes.data() + body, sizeof sum);
  if (XXH3_64bits(bytes.data(), body) != sum) return corrupt("its checksum does not match");
  std::memcpy(rows_.data(), bytes.data() + sizeof head, rows_.size() * sizeof(double));
  std::memcpy(counts_.data(), bytes.data() + sizeof head + rows_.size() * sizeof(double),
              counts_.size() * sizeof(float));
  // A checksum is no proof of who wrote it.
  const auto refuse = [&](const char* why) {
    clear();
    return corrupt(why);
  };
  for (const double r : rows_)
    if (!(r >= 0 && r <= kMostRows)) return refuse("a number of rows is out of range");
  for (const float n : counts_)
    if (!(n >= 0 && n <= static_cast<float>(2 * kMostRows))) return refuse("a count is out of range");
  return {};
}

Result<LearnedCounts> LearnedCounts::load(const std::string& path, std::uint64_t model_hash,
                                          std::uint32_t layers, std::uint32_t experts) {
  LearnedCounts counts(layers, experts);
  std::string bytes;
  WISP_TRY(counts.load(path, model_hash, bytes));
  return counts;
}

/// `bytes` is scratch.
Status LearnedCounts::load(const std::string& path, std::uint64_t model_hash, std::string& bytes) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return errno == ENOENT ? not_found(path + ": nothing is learned yet") : file_error(path);
  struct stat s {};
  if (::fstat(file.get(), &s) != 0) return file_error(path);
  if (!S_ISREG(s.st_mode)) return invalid(path + ": not a regular file");
  // One byte more than is right is enough to see that it is wrong.
  bytes.resize(file_size(layers_, experts_) + 1);
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t n = ::read(file.get(), bytes.data() + have, bytes.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return file_error(path);
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
  }
  Status decoded = decode(std::string_view(bytes).substr(0, have), model_hash);
  if (!decoded.ok()) return Error(decoded.error()).within(path);
  return {};
}

void LearnedCounts::absorb(const LearnedCounts& later) {
  WISP_CHECK(later.layers_ == layers_ && later.experts_ == experts_);
  for (std::uint32_t l = 0; l < layers_; ++l) {
    const double keep = std::exp2(-later.rows_[l] / kHalfLife);
    rows_[l] = std::min(kMostRows, rows_[l] * keep + later.rows_[l]);
    for (std::size_t i = std::size_t{l} * experts_; i < std::size_t{l + 1} * experts_; ++i) {
      const float kept = counts_[i] * static_cast<float>(keep);
      counts_[i] = (kept < kForgotten ? 0.0f : kept) + later.counts_[i];
    }
  }
}

Status LearnedFile::add(const LearnedCounts& later) {
  return file_.update([&]() -> Result<std::string_view> {
    if (const Status s = all_.load(path(), model_hash_, bytes_); !s.ok()) {
      if (s.error().code == ErrorCode::kIo) return Error(s.error());
      all_.clear();
    }
    all_.absorb(later);
    all_.encode(model_hash_, bytes_);
    return std::string_view(bytes_);
  });
}

std::string learned_path(std::uint64_t model_hash) {
  const std::string folder = state_folder();
  if (folder.empty()) return "";
  char name[24];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(model_hash));
  return folder + "/learned/" + name;
}

}  // namespace wisp::loader
