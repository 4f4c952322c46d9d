#include "model/json.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/fd.hpp"
#include "base/json_depth.hpp"

namespace wisp::model {
namespace {

std::string shown(const Json& v) {
  return printable(v.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string shown(double v) {
  std::string s = Json(v).dump();
  return s.ends_with(".0") ? s.substr(0, s.size() - 2) : s;
}

}  // namespace

Result<std::string> read_text_file(const std::string& path, std::uint64_t max_bytes) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) {
    const int e = errno;
    if (e == ENOENT || e == ENOTDIR) return not_found(path + ": no such file");
    return io_error(path + ": " + std::strerror(e));
  }
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return io_error(path + ": " + std::strerror(errno));
  if (!S_ISREG(st.st_mode)) return invalid(path + ": not a regular file");
  const auto size = static_cast<std::uint64_t>(st.st_size);
  if (size > max_bytes) {
    return invalid(path + ": " + std::to_string(size) + " bytes; at most " + std::to_string(max_bytes) +
                   " are read");
  }
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path + ": " + std::strerror(errno));
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  text.resize(done);
  return text;
}

Result<Json> parse_json_object(std::string_view text, const std::string& what) {
  if (json_too_deep(text)) {
    return invalid(what + ": nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
  }
  try {
    Json value = Json::parse(text.begin(), text.end());
    if (!value.is_object()) return invalid(what + ": not a JSON object");
    return value;
  } catch (const Json::exception& e) {
    std::string_view why = e.what();
    if (const auto cut = why.find("] "); cut != why.npos) why.remove_prefix(cut + 2);
    return invalid(what + ": not valid JSON: " + printable(why));
  }
}

std::string printable(std::string_view text) {
  constexpr std::size_t kShown = 160;
  std::string out;
  for (const char c : text.substr(0, kShown)) {
    out.push_back(static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c);
  }
  if (text.size() > kShown) out += "...";
  return out;
}

const Json* Fields::find(std::string_view key) const {
  if (!object_->is_object()) return nullptr;
  const auto it = object_->find(std::string(key));
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

Error Fields::wrong(std::string_view key, std::string_view text) const {
  return invalid(where_ + ": " + std::string(key) + " " + std::string(text));
}

Result<std::uint64_t> Fields::u64(std::string_view key, std::uint64_t min, std::uint64_t max) const {
  const Json* v = find(key);
  if (!v) return missing(key);
  if (!v->is_number_integer()) return wrong(key, "is " + shown(*v) + ", not a whole number");
  const bool negative = !v->is_number_unsigned() && v->get<std::int64_t>() < 0;
  const std::uint64_t n = negative ? 0 : v->get<std::uint64_t>();
  if (negative || n < min || n > max) {
    return wrong(key,
                 "is " + shown(*v) + "; allowed is " + std::to_string(min) + " to " + std::to_string(max));
  }
  return n;
}

Result<std::uint32_t> Fields::u32(std::string_view key, std::uint32_t min, std::uint32_t max) const {
  WISP_ASSIGN(const std::uint64_t n, u64(key, min, max));
  return static_cast<std::uint32_t>(n);
}

Result<std::uint32_t> Fields::u32_or(std::string_view key, std::uint32_t fallback, std::uint32_t min,
                                     std::uint32_t max) const {
  if (!has(key)) return fallback;
  return u32(key, min, max);
}

Result<double> Fields::number(std::string_view key, double min, double max) const {
  const Json* v = find(key);
  if (!v) return missing(key);
  if (!v->is_number()) return wrong(key, "is " + shown(*v) + ", not a number");
  const double d = v->get<double>();
  if (!std::isfinite(d) || d < min || d > max) {
    return wrong(key, "is " + shown(*v) + "; allowed is " + shown(min) + " to " + shown(max));
  }
  return d;
}

Result<double> Fields::number_or(std::string_view key, double fallback, double min, double max) const {
  if (!has(key)) return fallback;
  return number(key, min, max);
}

Result<bool> Fields::boolean(std::string_view key) const {
  const Json* v = find(key);
  if (!v) return missing(key);
  if (!v->is_boolean()) return wrong(key, "is " + shown(*v) + ", not true or false");
  return v->get<bool>();
}

Result<bool> Fields::boolean_or(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  return boolean(key);
}

Result<std::string> Fields::text(std::string_view key) const {
  const Json* v = find(key);
  if (!v) return missing(key);
  if (!v->is_string()) return wrong(key, "is " + shown(*v) + ", not a string");
  return v->get<std::string>();
}

Result<std::string> Fields::text_or(std::string_view key, std::string fallback) const {
  if (!has(key)) return fallback;
  return text(key);
}

Result<Fields> Fields::object(std::string_view key) const {
  const Json* v = find(key);
  if (!v) return missing(key);
  if (!v->is_object()) return wrong(key, "is not an object");
  return Fields(*v, where_ + ": " + std::string(key));
}

Result<const Json*> Fields::array(std::string_view key) const {
  const Json* v = find(key);
  if (!v) return missing(key);
  if (!v->is_array()) return wrong(key, "is not a list");
  return v;
}

}  // namespace wisp::model
