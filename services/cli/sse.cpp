#include "services/cli/sse.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace wisp::cli {

namespace {

/// No honest head or line is longer; a peer that sends one is not ours.
constexpr std::size_t kMaxHead = 64 * 1024;

std::string_view without_return(std::string_view line) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

}  // namespace

void SseReader::reset() {
  partial_.clear();
  event_ = {};
  has_data_ = false;
}

void SseReader::feed(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    if (end == std::string_view::npos) {
      partial_ += bytes;
      return;
    }
    partial_ += bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    const std::string whole = std::move(partial_);
    partial_.clear();
    line(without_return(whole), sink);
  }
}

void SseReader::line(std::string_view text, const Sink& sink) {
  if (text.empty()) {
    if (has_data_ && sink.event) sink.event(event_);
    event_ = {};
    has_data_ = false;
    return;
  }
  const auto colon = text.find(':');
  const std::string_view field = text.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  if (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  if (colon == 0) {
    if (sink.comment) sink.comment(value);
  } else if (field == "data") {
    if (has_data_) event_.data += '\n';
    event_.data += value;
    has_data_ = true;
  } else if (field == "id") {
    event_.id = value;
  }
}

std::string ResponseReader::header(const std::string& name) const {
  const auto at = headers_.find(name);
  return at == headers_.end() ? std::string{} : at->second;
}

Status ResponseReader::feed(std::string_view bytes, const std::function<void(std::string_view)>& body) {
  while (!bytes.empty() && state_ != State::kComplete) {
    if (state_ == State::kHead) {
      partial_ += bytes;
      bytes = {};
      const auto end = partial_.find("\r\n\r\n");
      if (end == std::string::npos) {
        if (partial_.size() > kMaxHead) return io_error("the gateway's answer has an endless head");
        return {};
      }
      const std::string all = std::move(partial_);
      partial_.clear();
      WISP_TRY(take_head(std::string_view(all).substr(0, end)));
      return feed(std::string_view(all).substr(end + 4), body);
    }
    if (state_ == State::kChunkData || state_ == State::kLength || state_ == State::kUntilClose) {
      bytes.remove_prefix(take_body(bytes, body));
      continue;
    }
    const auto end = bytes.find('\n');
    partial_ += bytes.substr(0, end);
    if (partial_.size() > kMaxHead) return io_error("the gateway's answer has an endless line");
    if (end == std::string_view::npos) return {};
    bytes.remove_prefix(end + 1);
    const std::string whole = std::move(partial_);
    partial_.clear();
    WISP_TRY(take_line(without_return(whole)));
  }
  return {};
}

Status ResponseReader::take_head(std::string_view head) {
  std::size_t at = 0;
  bool first = true;
  while (at <= head.size()) {
    const auto end = std::min(head.find("\r\n", at), head.size());
    const std::string_view text = head.substr(at, end - at);
    at = end + 2;
    if (first) {
      const bool http = text.starts_with("HTTP/1.") && text.size() >= 12;
      if (!http || std::from_chars(text.data() + 9, text.data() + 12, status_).ec != std::errc{})
        return io_error("the gateway's socket does not answer in HTTP");
      first = false;
      continue;
    }
    const auto colon = text.find(':');
    if (colon != std::string_view::npos)
      headers_[lower(text.substr(0, colon))] = trimmed(text.substr(colon + 1));
  }
  if (status_ >= 100 && status_ < 200) return {};  // "100 Continue": the head proper follows
  const std::string length = header("content-length");
  if (lower(header("transfer-encoding")).find("chunked") != std::string::npos) {
    state_ = State::kChunkSize;
  } else if (!length.empty()) {
    if (std::from_chars(length.data(), length.data() + length.size(), left_).ec != std::errc{})
      return io_error("the gateway's answer has Content-Length " + length);
    state_ = left_ == 0 ? State::kComplete : State::kLength;
  } else {
    state_ = State::kUntilClose;
  }
  return {};
}

Status ResponseReader::take_line(std::string_view line) {
  switch (state_) {
    case State::kChunkSize: {
      const auto parsed = std::from_chars(line.data(), line.data() + line.size(), left_, 16);
      if (parsed.ec != std::errc{}) return io_error("the gateway's answer has a broken chunk");
      state_ = left_ == 0 ? State::kTrailer : State::kChunkData;
      break;
    }
    case State::kChunkEnd:
      state_ = State::kChunkSize;
      break;
    case State::kTrailer:
      if (line.empty()) state_ = State::kComplete;
      break;
    default:
      break;
  }
  return {};
}

std::size_t ResponseReader::take_body(std::string_view bytes,
                                      const std::function<void(std::string_view)>& body) {
  const std::size_t n =
      state_ == State::kUntilClose ? bytes.size() : std::min<std::uint64_t>(left_, bytes.size());
  if (n != 0) body(bytes.substr(0, n));
  if (state_ == State::kUntilClose) return n;
  left_ -= n;
  if (left_ == 0) state_ = state_ == State::kChunkData ? State::kChunkEnd : State::kComplete;
  return n;
}

}  // namespace wisp::cli
