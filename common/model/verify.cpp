#include "model/verify.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "model/manifest.hpp"
#include "model/safetensors.hpp"
#include "model/stripes.hpp"

namespace wisp::model {
namespace {

constexpr std::size_t kShown = 20;
constexpr std::uint64_t kChunk = std::uint64_t{8} << 20;

class Verifier {
 public:
  Verifier(const std::string& folder, const Manifest& m, const std::vector<Stripe>& stripes,
           const ProgressFn& progress)
      : folder_(folder), progress_(progress), buffer_(kChunk) {
    add_weights(m);
    for (const Manifest& head : m.draft_head) add_weights(head);
    for (const Stripe& s : stripes) total_ += s.bytes() * m.spec.expert_count();
    for (const auto& [name, t] : m.texts) total_ += t.bytes;
  }

  /// All of them; `who` is what stands before a part's name.
  void check_weights(const Manifest& m, const std::string& who) {
    open(m.dense_file);
    for (const auto& [name, t] : m.dense) {
      check(who + "dense tensor " + name, m.dense_file_offset + t.offset, t.bytes, t.checksum);
      ++report.dense_tensors;
    }
    for (std::size_t layer = 0; layer < m.experts.size(); ++layer) {
      const LayerExperts& experts = m.experts[layer];
      if (experts.extents.empty()) continue;
      open(experts.file);
      for (std::size_t e = 0; e < experts.extents.size(); ++e) {
        const std::string what =
            (m.spec.draft_head ? "" : "layer " + std::to_string(layer) + " ") + "expert ";
        check(who + what + std::to_string(e), experts.extents[e].offset, m.spec.expert.payload,
              experts.extents[e].checksum);
        ++report.experts;
      }
    }
  }

  void check_texts(const Manifest& m) {
    for (const auto& [name, t] : m.texts) {
      open(name);
      check("text", 0, t.bytes, t.checksum);
      ends_at(t.bytes);
      ++report.texts;
    }
  }

  void open(const std::string& file) {
    file_ = file;
    const std::string path = file.starts_with('/') ? file : folder_ + "/" + file;
    fd_.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    open_error_ = fd_.valid() ? "" : std::strerror(errno);
    struct stat st {};
    if (fd_.valid() && (::fstat(fd_.get(), &st) != 0 || !S_ISREG(st.st_mode)))
      open_error_ = "not a regular file";
    // What the page cache holds says nothing about the device.
    if (fd_.valid()) static_cast<void>(::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED));
  }

  void check(const std::string& what, std::uint64_t offset, std::uint64_t bytes, std::uint64_t checksum) {
    std::string why = open_error_;
    if (why.empty()) {
      const std::unique_ptr<XXH3_state_t, void (*)(XXH3_state_t*)> hash(
          XXH3_createState(), [](XXH3_state_t* s) { static_cast<void>(XXH3_freeState(s)); });
      WISP_CHECK(hash != nullptr);
      XXH3_64bits_reset(hash.get());
      for (std::uint64_t at = 0; at < bytes && why.empty(); at += kChunk) {
        const auto part = std::span(buffer_).first(std::min(kChunk, bytes - at));
        if (auto read = read_exactly(fd_.get(), offset + at, part, file_); !read.ok())
          why = read.error().text;
        XXH3_64bits_update(hash.get(), part.data(), part.size());
      }
      if (why.empty() && XXH3_64bits_digest(hash.get()) != checksum) why = "the checksum differs";
    }
    if (!why.empty()) add_bad({what, file_, offset, bytes, why});
    report.bytes += bytes;
    if (progress_) progress_(report.bytes, total_);
  }

  /// The open file has `bytes` and no more.
  void ends_at(std::uint64_t bytes) {
    struct stat st {};
    if (!fd_.valid() || ::fstat(fd_.get(), &st) != 0) return;  // told by check()
    const auto size = static_cast<std::uint64_t>(st.st_size);
    if (size > bytes) add_bad({"text", file_, bytes, size - bytes, "more bytes than were written"});
  }

  VerifyReport report;

 private:
  void add_weights(const Manifest& m) {
    for (const auto& [name, t] : m.dense) total_ += t.bytes;
    total_ += m.spec.expert.payload * m.spec.expert_count();
  }
  void add_bad(BadPart bad) {
    ++report.bad_count;
    if (report.bad.size() < kShown) report.bad.push_back(std::move(bad));
  }

  const std::string& folder_;
  const ProgressFn& progress_;
  std::vector<std::uint8_t> buffer_;
  std::uint64_t total_ = 0;
  std::string file_, open_error_;
  Fd fd_;
};

}  // namespace

Result<VerifyReport> verify(const std::string& folder, const ProgressFn& progress) {
  const auto start = std::chrono::steady_clock::now();
  WISP_ASSIGN(const Manifest m, load_manifest(folder));
  WISP_ASSIGN(const std::vector<Stripe> stripes, load_stripes(folder, m));
  Verifier v(folder, m, stripes, progress);
  v.check_weights(m, "");
  for (const Manifest& head : m.draft_head) v.check_weights(head, "draft head: ");
  for (const Stripe& s : stripes) {
    for (std::size_t layer = 0; layer < s.files.size(); ++layer) {
      if (s.files[layer].empty()) continue;
      v.open(s.folder + "/" + s.files[layer]);
      for (std::uint32_t e = 0; e < s.checksums[layer].size(); ++e)
        v.check("stripe of layer " + std::to_string(layer) + " expert " + std::to_string(e), s.offset_of(e),
                s.bytes(), s.checksums[layer][e]);
    }
    ++v.report.stripes;
  }
  v.check_texts(m);
  v.report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(v.report);
}

Status verify_texts(const std::string& folder, const Manifest& m) {
  const ProgressFn silent;
  Verifier v(folder, m, {}, silent);
  v.check_texts(m);
  if (v.report.bad_count == 0) return {};
  const BadPart& bad = v.report.bad.front();
  return corrupt(folder + "/" + bad.file + ": " + bad.why);
}

}  // namespace wisp::model
