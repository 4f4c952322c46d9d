#include "services/loader/trace_recorder.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace wisp::loader {

Result<std::unique_ptr<TraceRecorder>> TraceRecorder::open(const std::string& path,
                                                           const trace::TraceModel& model,
                                                           std::span<const std::uint64_t> expert_bytes,
                                                           bool first) {
  struct stat s {};
  const std::string beside = unfinished(path);
  const bool replaceable = ::stat(path.c_str(), &s) != 0 || S_ISREG(s.st_mode);
  const bool named = first ? !replaceable : ::stat(beside.c_str(), &s) != 0;
  // Not to wait for a reader of a pipe.
  const int how = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | (named ? 0 : O_NOFOLLOW) |
                  (first && !named ? O_TRUNC : 0);
  Fd file(::open((named ? path : beside).c_str(), how, 0644));
  if (!file.valid() || ::fstat(file.get(), &s) != 0)
    return io_error("the routing trace " + path + ": " + std::strerror(errno));
  if (S_ISFIFO(s.st_mode)) return invalid("the routing trace " + path + ": is a pipe; name a file");
  std::unique_ptr<TraceRecorder> r(
      new TraceRecorder(path, std::move(file), named, expert_bytes, model.experts));
  if (s.st_size == 0) r->text_ = trace::describe_model(model, expert_bytes);
  if (s.st_size != 0 || !first) r->restart("a new loader, with the slots that it found filled");
  r->flush();
  return r;
}

void TraceRecorder::add(const Touch& touch) {
  if (!file_.valid()) return;
  if (touch.layer == layer_) text_.append(trace::kTouchLine) += '\n';
  layer_ = touch.layer;
  touch.rows.empty() ? add_members(touch) : add_rows(touch);
  flush();
  if (!named_ && file_.valid()) give_name();
}

void TraceRecorder::give_name() {
  named_ = true;
  if (::rename(unfinished(path_).c_str(), path_.c_str()) != 0) end(std::strerror(errno));
}

void TraceRecorder::end(const char* why) {
  spdlog::warn("the routing trace {} ends here: {}", path_, why);
  file_.reset();
}

void TraceRecorder::add_rows(const Touch& t) {
  for (std::size_t i = 0; i < t.set.size(); ++i) resident_[t.set[i].expert] = t.resident[i];
  const std::size_t ranks = t.choices.size() / t.rows.size();
  for (std::size_t i = 0; i < t.choices.size(); ++i) {
    const ring::TouchRow& row = t.rows[i / ranks];
    const ring::TouchChoice& c = t.choices[i];
    if (c.expert >= resident_.size()) continue;  // answered as an error; no expert, no line
    trace::append_line(
        text_, {row.request, t.decode, row.position, t.layer, static_cast<std::uint32_t>(i % ranks), c.expert,
                c.weight, resident_[c.expert] != 0, expert_bytes_[t.layer]});
  }
}

void TraceRecorder::add_members(const Touch& t) {
  for (std::size_t i = 0; i < t.set.size(); ++i)
    for (std::uint32_t row = 0; row < t.set[i].rows; ++row)
      trace::append_line(
          text_, {0, t.decode, static_cast<std::uint32_t>(t.step), t.layer, static_cast<std::uint32_t>(i),
                  t.set[i].expert, 0.0f, t.resident[i] != 0, expert_bytes_[t.layer]});
}

void TraceRecorder::restart(std::string_view why) {
  if (!file_.valid()) return;
  text_.append(trace::kRestartLine).append(why) += '\n';
  layer_ = ~0U;
}

void TraceRecorder::flush() {
  if (text_.empty() || !file_.valid()) return;
  std::size_t done = 0;
  while (done < text_.size()) {
    const ssize_t n = ::write(file_.get(), text_.data() + done, text_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      end(n < 0 ? std::strerror(errno) : "nothing was written");
      break;
    }
    done += static_cast<std::size_t>(n);
  }
  text_.clear();
}

}  // namespace wisp::loader
