#include "model/synth/gguf_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <type_traits>

#include "base/check.hpp"

namespace wisp::model {
namespace {

constexpr std::uint64_t kAlign = 32;
constexpr std::uint32_t kVersion = 3;

std::string partial_of(const std::string& path) {
  return path + ".partial-" + std::to_string(::getpid());
}

/// Header fields, one after the other.
struct Bytes {
  std::string bytes;

  template <class T>
  void number(T v) {
    static_assert(std::is_arithmetic_v<T>);
    bytes.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  void text(const std::string& s) {
    number(std::uint64_t{s.size()});
    bytes += s;
  }
  void value(const GgufValue& v) {
    // The format's numbers for the types.
    if (const auto* u = std::get_if<std::uint32_t>(&v)) {
      number(std::uint32_t{4});
      number(*u);
    } else if (const auto* f = std::get_if<float>(&v)) {
      number(std::uint32_t{6});
      number(*f);
    } else if (const auto* b = std::get_if<bool>(&v)) {
      number(std::uint32_t{7});
      number(static_cast<std::uint8_t>(*b));
    } else {
      number(std::uint32_t{8});
      text(std::get<std::string>(v));
    }
  }
  void pad() { bytes.resize((bytes.size() + kAlign - 1) / kAlign * kAlign); }
};

std::uint64_t padded(std::uint64_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

std::uint64_t gguf_row_bytes(GgufType t, std::uint64_t cols) {
  switch (t) {
    case GgufType::kF32:
      return cols * 4;
    case GgufType::kBf16:
      return cols * 2;
    case GgufType::kQ4_0:
      return cols / 32 * 18;
    case GgufType::kQ8_0:
      return cols / 32 * 34;
  }
  WISP_CHECK(false);
}

std::uint64_t GgufTensor::bytes() const {
  std::uint64_t n = gguf_row_bytes(type, shape.front());
  for (std::size_t i = 1; i < shape.size(); ++i) n *= shape[i];
  return n;
}

namespace {
/// Removes the `<path>.partial-PID` of runs that were killed: their lock is free.
void remove_leftovers(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ec;
  const fs::path whole = fs::absolute(path, ec);
  const std::string prefix = whole.filename().string() + ".partial-";
  std::vector<fs::path> found;
  for (fs::directory_iterator it(whole.parent_path(), ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == name.npos)
      found.push_back(it->path());
  }
  for (const fs::path& p : found) {
    const Fd fd(::open(p.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat s {};
    if (fd.valid() && ::fstat(fd.get(), &s) == 0 && S_ISREG(s.st_mode) &&
        ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0)
      fs::remove(p, ec);
  }
}
}  // namespace

Result<GgufFile> GgufFile::create(const std::string& path, bool replace,
                                  const std::vector<std::pair<std::string, GgufValue>>& values,
                                  std::vector<GgufTensor> tensors) {
  std::error_code ec;
  if (std::filesystem::exists(path, ec) && (!replace || !std::filesystem::is_regular_file(path, ec)))
    return invalid(path + ": exists already" + (replace ? " and is no file" : "; --force replaces it"));
  Bytes header;
  header.bytes = "GGUF";
  header.number(kVersion);
  header.number(std::uint64_t{tensors.size()});
  header.number(std::uint64_t{values.size()});
  for (const auto& [key, value] : values) {
    header.text(key);
    header.value(value);
  }
  std::uint64_t at = 0;
  for (const GgufTensor& t : tensors) {
    WISP_CHECK(!t.shape.empty() && t.shape.size() <= 4);
    header.text(t.name);
    header.number(static_cast<std::uint32_t>(t.shape.size()));
    for (const std::uint64_t n : t.shape) header.number(n);
    header.number(static_cast<std::uint32_t>(t.type));
    header.number(at);
    at += padded(t.bytes());
  }
  header.pad();
  remove_leftovers(path);
  WISP_ASSIGN(OutputFile file, OutputFile::create(partial_of(path)));
  GgufFile out(path, std::move(file), std::move(tensors));
  WISP_TRY(out.file_.lock());
  out.bytes_ = header.bytes.size() + at;
  WISP_TRY(out.file_.write(header.bytes));
  return out;
}

GgufFile::GgufFile(GgufFile&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      file_(std::move(other.file_)),
      tensors_(std::move(other.tensors_)),
      tensor_(other.tensor_),
      written_(other.written_),
      bytes_(other.bytes_) {}

GgufFile::~GgufFile() {
  std::error_code ec;
  if (!path_.empty()) std::filesystem::remove(partial_of(path_), ec);
}

Status GgufFile::write(std::span<const std::uint8_t> bytes) {
  WISP_CHECK(tensor_ < tensors_.size());
  const std::uint64_t whole = tensors_[tensor_].bytes();
  WISP_CHECK(bytes.size() <= whole - written_);
  WISP_TRY(file_.write(bytes));
  written_ += bytes.size();
  if (written_ < whole) return {};
  const std::vector<std::uint8_t> zeros(padded(whole) - whole);
  written_ = 0;
  ++tensor_;
  return file_.write(zeros);
}

Status GgufFile::close() {
  WISP_CHECK(tensor_ == tensors_.size());
  WISP_TRY(file_.close_durably());
  std::error_code ec;
  std::filesystem::rename(partial_of(path_), path_, ec);
  if (ec) return io_error(path_ + ": rename: " + ec.message());
  path_.clear();
  return {};
}

}  // namespace wisp::model
