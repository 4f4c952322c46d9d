#pragma once
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace wisp::cli {

/// "17.2 GB": decimal units, as disks are sold.
inline std::string show_bytes(double n) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t u = 0;
  while (n >= 999.5 && u + 1 < std::size(units)) {
    n /= 1000.0;
    ++u;
  }
  char s[32];
  std::snprintf(s, sizeof s, u == 0 || n >= 99.95 ? "%.0f %s" : "%.1f %s", n, units[u]);
  return s;
}

/// Progress of a job over bytes, on stderr: rate and time to go. On a terminal one line is rewritten;
/// elsewhere a line is printed every ten seconds.
class ByteProgress {
 public:
  explicit ByteProgress(const char* verb) : verb_(verb) {}
  ~ByteProgress() { clear(); }

  void operator()(std::uint64_t done, std::uint64_t total) {
    const auto now = Clock::now();
    const double since = seconds(now - printed_);
    if (since < (tty_ ? 0.2 : 10.0)) return;
    printed_ = now;
    const double spent = seconds(now - start_);
    const double rate = spent > 0.0 ? static_cast<double>(done) / spent : 0.0;
    const double left = rate > 0.0 ? static_cast<double>(total - done) / rate : 0.0;
    const double percent =
        total != 0 ? 100.0 * static_cast<double>(done) / static_cast<double>(total) : 100.0;
    std::fprintf(stderr, "%s%s %3.0f %%  %s of %s  %s/s  %.0f s to go%s", tty_ ? "\r" : "", verb_, percent,
                 show_bytes(static_cast<double>(done)).c_str(),
                 show_bytes(static_cast<double>(total)).c_str(), show_bytes(rate).c_str(), left,
                 tty_ ? "\x1b[K" : "\n");
    std::fflush(stderr);
    shown_ = true;
  }

  /// Takes the line off a terminal, so that what follows stands alone.
  void clear() {
    if (tty_ && shown_) std::fputs("\r\x1b[K", stderr);
    shown_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

  const char* verb_;
  const bool tty_ = ::isatty(STDERR_FILENO) == 1;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point printed_ = start_;
  bool shown_ = false;
};

}  // namespace wisp::cli
