#include "model/resume_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "base/fd.hpp"
#include "model/json.hpp"

namespace wisp::model {

namespace {
constexpr std::uint64_t kMaxBytes = std::uint64_t{256} << 20;

std::string hex(std::uint64_t n) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, n);
  return text;
}

/// The finished lines; what follows the last line feed was not written to its end.
std::string lines_of(const std::string& folder) {
  auto text = read_text_file(folder + "/" + ResumeLog::kFile, kMaxBytes);
  if (!text.ok()) return {};
  return text->substr(0, text->rfind('\n') + 1);
}

Status append(const std::string& path, const std::string& line) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  const bool done = fd.valid() &&
                    ::write(fd.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
                    ::fsync(fd.get()) == 0;
  if (done) return {};
  const std::string text = path + ": " + std::strerror(errno);
  return errno == ENOSPC || errno == EDQUOT ? exhausted(text) : io_error(text);
}
}  // namespace

bool ResumeLog::belongs(const std::string& folder, std::uint64_t key) {
  return lines_of(folder).starts_with(hex(key) + "\n");
}

Result<ResumeLog> ResumeLog::open(const std::string& folder, std::uint64_t key) {
  ResumeLog log;
  log.path_ = folder + "/" + kFile;
  const std::string lines = lines_of(folder);
  // A torn last line would run into the next one.
  if (::truncate(log.path_.c_str(), static_cast<off_t>(lines.size())) != 0 && errno != ENOENT)
    return io_error(log.path_ + ": " + std::strerror(errno));
  if (lines.empty()) {
    WISP_TRY(append(log.path_, hex(key) + "\n"));
    return log;
  }
  std::istringstream in(lines);
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string file;
    words >> file;
    std::vector<std::uint64_t>& sums = log.files_[file];
    for (std::string sum; words >> sum;) sums.push_back(std::strtoull(sum.c_str(), nullptr, 16));
  }
  return log;
}

const std::vector<std::uint64_t>* ResumeLog::find(const std::string& file) const {
  const auto it = files_.find(file);
  return it == files_.end() ? nullptr : &it->second;
}

Status ResumeLog::add(const std::string& file, std::vector<std::uint64_t> checksums) {
  std::string line = file;
  for (const std::uint64_t sum : checksums) line += " " + hex(sum);
  WISP_TRY(append(path_, line + "\n"));
  files_[file] = std::move(checksums);
  return {};
}

}  // namespace wisp::model
