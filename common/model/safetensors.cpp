#include "model/safetensors.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_set>

#include "model/json.hpp"

namespace wisp::model {
namespace {

struct DtypeRow {
  Dtype type;
  std::string_view name;
  std::uint64_t bits;
};
constexpr std::array<DtypeRow, 17> kDtypes{{
    {Dtype::kBool, "BOOL", 8},
    {Dtype::kU8, "U8", 8},
    {Dtype::kI8, "I8", 8},
    {Dtype::kF8E4M3, "F8_E4M3", 8},
    {Dtype::kF8E5M2, "F8_E5M2", 8},
    {Dtype::kF8E8M0, "F8_E8M0", 8},
    {Dtype::kF4, "F4", 4},
    {Dtype::kU16, "U16", 16},
    {Dtype::kI16, "I16", 16},
    {Dtype::kF16, "F16", 16},
    {Dtype::kBf16, "BF16", 16},
    {Dtype::kU32, "U32", 32},
    {Dtype::kI32, "I32", 32},
    {Dtype::kF32, "F32", 32},
    {Dtype::kU64, "U64", 64},
    {Dtype::kI64, "I64", 64},
    {Dtype::kF64, "F64", 64},
}};

/// Takes the header event by event, so that nothing but the tensors is ever held, whatever the text nests.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(std::vector<TensorInfo>& out) : out_(out) {}
  const std::string& problem() const { return problem_; }

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a fraction"); }
  bool binary(binary_t&) override { return value("binary"); }

  bool number_unsigned(number_unsigned_t n) override {
    if (in_metadata_) return value("a number");
    if (!in_list_) return value("a number");
    if (key_ == "shape") {
      if (tensor_.shape.size() == kMaxRank)
        return fail("has more than " + std::to_string(kMaxRank) + " dimensions");
      tensor_.shape.push_back(n);
    } else {
      if (offsets_ == 2) return fail("has more than two data_offsets");
      range_[offsets_++] = n;
    }
    return true;
  }

  bool string(string_t& s) override {
    if (in_metadata_) return true;
    if (depth_ != 2 || in_list_ || key_ != "dtype") return value("a string");
    for (const auto& row : kDtypes) {
      if (row.name == s) {
        tensor_.dtype = row.type;
        return true;
      }
    }
    return fail("has the unknown dtype " + printable(s));
  }

  bool key(string_t& k) override {
    if (in_metadata_) return true;
    if (depth_ == 1) {
      if (k.size() > kMaxTensorName) return fail("has a name of " + std::to_string(k.size()) + " bytes", k);
      if (!names_.insert(k).second) return fail("appears twice", k);
      if (k == "__metadata__") {
        metadata_next_ = true;
      } else {
        if (out_.size() == kMaxTensors)
          return fail("is one more than " + std::to_string(kMaxTensors) + " tensors", k);
        tensor_ = {};
        tensor_.name = k;
        offsets_ = seen_ = 0;
      }
      return true;
    }
    const unsigned bit = k == "dtype" ? 1u : k == "shape" ? 2u : k == "data_offsets" ? 4u : 0u;
    if (bit == 0) return fail("has the unknown key " + printable(k));
    if (seen_ & bit) return fail("has the key " + k + " twice");
    seen_ |= bit;
    key_ = k;
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ == 1 && metadata_next_) {
      in_metadata_ = true;
      metadata_next_ = false;
    } else if (depth_ >= 2 || in_metadata_ || in_list_) {
      return value("an object");
    }
    ++depth_;
    return true;
  }

  bool end_object() override {
    --depth_;
    if (in_metadata_) {
      in_metadata_ = false;
    } else if (depth_ == 1) {
      if (seen_ != 7) return fail("lacks dtype, shape or data_offsets");
      if (offsets_ != 2) return fail("needs two data_offsets");
      if (range_[1] < range_[0]) return fail("ends before it begins");
      tensor_.offset = range_[0];
      tensor_.bytes = range_[1] - range_[0];
      out_.push_back(std::move(tensor_));
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || in_list_ || key_ == "dtype") return value("a list");
    return in_list_ = true;
  }
  bool end_array() override {
    in_list_ = false;
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override {
    if (problem_.empty()) problem_ = "the header is not valid JSON at byte " + std::to_string(at);
    return false;
  }

 private:
  bool fail(const std::string& what, std::string_view name) {
    problem_ = "tensor " + printable(name) + " " + what;
    return false;
  }
  bool fail(const std::string& what) { return fail(what, tensor_.name); }
  bool value(std::string_view what) {
    if (depth_ == 0)
      problem_ = "the header is not an object";
    else if (in_metadata_ || metadata_next_)
      problem_ = "__metadata__ holds more than strings";
    else if (depth_ == 1)
      fail("is described by " + std::string(what));
    else
      fail("has " + std::string(what) + " where " + key_ + " expects something else");
    return false;
  }

  std::vector<TensorInfo>& out_;
  std::string problem_, key_;
  std::unordered_set<std::string> names_;
  TensorInfo tensor_;
  std::uint64_t range_[2] = {0, 0};
  unsigned depth_ = 0, offsets_ = 0, seen_ = 0;
  bool in_metadata_ = false, metadata_next_ = false, in_list_ = false;
};

/// Bytes of the shape, or nothing where the product does not fit.
std::optional<std::uint64_t> bytes_of(const TensorInfo& t) {
  std::uint64_t n = bits_of(t.dtype);
  if (std::find(t.shape.begin(), t.shape.end(), 0u) != t.shape.end()) return 0;
  for (const std::uint64_t d : t.shape) {
    if (d > std::numeric_limits<std::uint64_t>::max() / n) return std::nullopt;
    n *= d;
  }
  if (n % 8 != 0) return std::nullopt;
  return n / 8;
}

Result<std::uint64_t> header_bytes(std::string_view head, std::uint64_t file_bytes, const std::string& file) {
  if (file_bytes < 8 || head.size() < 8) {
    return invalid(file + ": " + std::to_string(file_bytes) + " bytes are too few for a safetensors file");
  }
  std::uint64_t n = 0;
  for (unsigned i = 0; i < 8; ++i) n |= std::uint64_t{static_cast<unsigned char>(head[i])} << (8 * i);
  if (n > kMaxHeaderBytes) {
    return invalid(file + ": claims a header of " + std::to_string(n) + " bytes; at most " +
                   std::to_string(kMaxHeaderBytes) + " are allowed (is it a safetensors file?)");
  }
  if (n > file_bytes - 8) {
    return invalid(file + ": truncated: its header needs " + std::to_string(n + 8) + " bytes, the file has " +
                   std::to_string(file_bytes));
  }
  return n;
}

}  // namespace

std::string_view name_of(Dtype t) {
  for (const auto& row : kDtypes) {
    if (row.type == t) return row.name;
  }
  return "?";
}

std::uint64_t bits_of(Dtype t) {
  for (const auto& row : kDtypes) {
    if (row.type == t) return row.bits;
  }
  return 8;
}

std::string describe(const TensorInfo& t) {
  std::string s = std::string(name_of(t.dtype)) + " [";
  for (std::size_t i = 0; i < t.shape.size(); ++i) s += (i ? ", " : "") + std::to_string(t.shape[i]);
  return s + "]";
}

Result<SafetensorsHeader> parse_safetensors(std::string_view head, std::uint64_t file_bytes,
                                            const std::string& file) {
  WISP_ASSIGN(const std::uint64_t length, header_bytes(head, file_bytes, file));
  if (head.size() - 8 < length) return invalid(file + ": the header is cut short");
  SafetensorsHeader out;
  out.data_offset = 8 + length;
  HeaderReader reader(out.tensors);
  const std::string_view text = head.substr(8, length);
  bool ok = false;
  try {
    ok = Json::sax_parse(text.begin(), text.end(), &reader);
  } catch (const std::exception& e) {
    return invalid(file + ": " + printable(e.what()));
  }
  if (!ok) return invalid(file + ": " + reader.problem());

  std::sort(out.tensors.begin(), out.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  std::uint64_t end = 0;
  const TensorInfo* before = nullptr;
  for (const auto& t : out.tensors) {
    const std::string who = file + ": tensor " + printable(t.name);
    const auto need = bytes_of(t);
    if (!need) return invalid(who + ": the shape " + describe(t) + " overflows");
    if (*need != t.bytes) {
      return invalid(who + ": " + describe(t) + " needs " + std::to_string(*need) +
                     " bytes, its data_offsets span " + std::to_string(t.bytes));
    }
    if (t.offset < end) return invalid(who + ": overlaps tensor " + printable(before->name));
    if (t.offset > end) {
      return invalid(who + ": begins at " + std::to_string(t.offset) + ", but the data before it ends at " +
                     std::to_string(end));
    }
    end = t.offset + t.bytes;  // offset + bytes is the stored end, so it cannot wrap
    before = &t;
  }
  const std::uint64_t data = file_bytes - out.data_offset;
  if (end > data) {
    return invalid(file + ": truncated: tensor " + printable(before->name) + " ends at byte " +
                   std::to_string(end) + " of the data, of which only " + std::to_string(data) +
                   " are there; download the file again");
  }
  if (end < data) {
    return invalid(file + ": " + std::to_string(data - end) + " bytes after the last tensor belong to none");
  }
  return out;
}

Status read_exactly(int fd, std::uint64_t offset, std::span<std::uint8_t> out, const std::string& path) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return io_error(path + ": read at byte " + std::to_string(offset + done) + ": " + std::strerror(errno));
    }
    if (n == 0) {
      return corrupt(path + ": ends at byte " + std::to_string(offset + done) + ", " +
                     std::to_string(out.size() - done) + " bytes short");
    }
    done += static_cast<std::size_t>(n);
  }
  return {};
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile f;
  f.path_ = path;
  f.fd_.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));  // a FIFO would wait
  if (!f.fd_.valid()) {
    const int e = errno;
    if (e == ENOENT) return not_found(path + ": no such file");
    return io_error(path + ": " + std::strerror(e));
  }
  struct stat st {};
  if (::fstat(f.fd_.get(), &st) != 0) return io_error(path + ": " + std::strerror(errno));
  if (!S_ISREG(st.st_mode)) return invalid(path + ": not a regular file");
  const auto size = static_cast<std::uint64_t>(st.st_size);
  std::string head(8, '\0');
  const auto bytes = [&head] { return std::span(reinterpret_cast<std::uint8_t*>(head.data()), head.size()); };
  if (size >= 8) WISP_TRY(read_exactly(f.fd_.get(), 0, bytes(), path));
  WISP_ASSIGN(const std::uint64_t length, header_bytes(head, size, path));
  head.resize(8 + length);
  WISP_TRY(read_exactly(f.fd_.get(), 0, bytes(), path));
  WISP_ASSIGN(f.header_, parse_safetensors(head, size, path));
  return f;
}

void SafetensorsFile::will_read(const TensorInfo& t, std::uint64_t at, std::uint64_t bytes) const {
  if (at >= t.bytes) return;
  static_cast<void>(::posix_fadvise(fd_.get(), static_cast<off_t>(header_.data_offset + t.offset + at),
                                    static_cast<off_t>(std::min(bytes, t.bytes - at)), POSIX_FADV_WILLNEED));
}

Status SafetensorsFile::read(const TensorInfo& t, std::uint64_t at, std::span<std::uint8_t> out) const {
  WISP_CHECK(at <= t.bytes && out.size() <= t.bytes - at);
  auto done = read_exactly(fd_.get(), header_.data_offset + t.offset + at, out, path_);
  if (!done.ok()) return std::move(done).error().within("tensor " + t.name);
  return {};
}

}  // namespace wisp::model
