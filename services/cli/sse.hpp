#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace wisp::cli {

/// One server-sent event.
struct SseEvent {
  std::string id;    ///< of this event; empty where it has none
  std::string data;  ///< its data lines, joined by newlines
};

/// Takes a byte stream apart into events and comments, however the packets were cut.
class SseReader {
 public:
  struct Sink {
    std::function<void(const SseEvent&)> event;
    std::function<void(std::string_view)> comment;  ///< text after ":", without the blank
  };

  void feed(std::string_view bytes, const Sink& sink);
  /// Forgets half an event: the connection broke, and it will come again.
  void reset();

 private:
  void line(std::string_view text, const Sink& sink);

  std::string partial_;
  SseEvent event_;
  bool has_data_ = false;
};

/// Takes an HTTP/1.1 response apart: head, then the body as bytes, whether it is chunked, of a known length
/// or ended by the connection.
class ResponseReader {
 public:
  /// Takes bytes; hands body bytes to `body`. Errors: kIo where this is no HTTP.
  Status feed(std::string_view bytes, const std::function<void(std::string_view)>& body);

  bool head_complete() const { return state_ != State::kHead; }
  /// The body is there to its end; false too where only the connection's end can tell.
  bool complete() const { return state_ == State::kComplete; }
  int status() const { return status_; }
  /// A header's value by its lower-case name; empty where there is none.
  std::string header(const std::string& name) const;

 private:
  enum class State { kHead, kChunkSize, kChunkData, kChunkEnd, kTrailer, kLength, kUntilClose, kComplete };

  Status take_head(std::string_view head);
  Status take_line(std::string_view line);
  std::size_t take_body(std::string_view bytes, const std::function<void(std::string_view)>& body);

  State state_ = State::kHead;
  std::string partial_;
  std::map<std::string, std::string> headers_;
  std::uint64_t left_ = 0;  ///< bytes of this chunk or body
  int status_ = 0;
};

}  // namespace wisp::cli
