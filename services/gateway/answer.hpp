#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "services/gateway/stream.hpp"
#include "shm/journal_reader.hpp"

namespace wisp::gateway {

/// One answer on its way to a client: a position in a journal record, and what has been made of it. Holds no
/// text of a stream but a token's worth; a client that is slow costs nothing.
class Answer {
 public:
  enum class Step {
    kNothing,   ///< nothing new
    kUnopened,  ///< the router has not opened the record
    kBytes,     ///< a stream: `out` holds whole events
    kEnd,       ///< `out` holds the end of the stream, or the whole body
    kFailed,    ///< not streaming: error() says why there is no answer
    kLost       ///< the record is gone
  };

  /// `received`: number of the last event that the client has (see stream.hpp); nullopt = none.
  Answer(std::uint64_t request, AnswerShape shape, bool streams, TokenBytes bytes,
         std::optional<std::uint64_t> received);

  /// Takes what is new in the record, as far as about `batch` bytes of events; at least one event if there is
  /// one.
  Step advance(const shm::JournalReader& journal, std::size_t batch, std::string& out);
  /// Whether advance() would find something.
  bool has_news(const shm::JournalReader& journal) const;

  bool streams() const { return streams_; }
  std::uint64_t request() const { return request_; }
  std::uint32_t tokens() const { return taken_; }
  /// A stop string ended the answer with the token taken last.
  bool stopped() const { return streams_ ? events_ && events_->stopped() : text_ && text_->stopped(); }
  std::uint32_t prompt_tokens() const { return params_.prompt_tokens; }
  std::uint32_t kv_len() const { return seen_.kv_len; }
  const ApiError& error() const { return error_; }
  /// The event that ends a stream with this error.
  void fail(const ApiError& error, std::string& out);

 private:
  bool open(const shm::JournalReader& journal, std::string& out);
  bool look(const shm::JournalReader& journal);
  bool read(const shm::JournalReader& journal, std::uint32_t count);
  bool next_token(const shm::JournalReader& journal, std::uint32_t& token,
                  std::span<const std::uint32_t>& told);
  void take(std::uint32_t token, std::span<const std::uint32_t> told, std::string& out);
  Step end(std::string& out);

  std::uint64_t request_;
  AnswerShape shape_;
  bool streams_;
  TokenBytes bytes_;
  std::optional<std::uint64_t> received_;

  std::optional<std::uint32_t> record_;
  shm::RequestParams params_;
  shm::JournalReader::State seen_;
  bool finished_ =
      false;  ///< `window_` then holds all that is left: the record may expire under a slow client
  std::string record_error_;
  std::uint32_t taken_ = 0;
  std::vector<std::uint32_t> window_;       ///< tokens [window_from_, ...), read ahead
  std::vector<std::uint32_t> window_told_;  ///< what is told of them, each_ words a token
  std::uint32_t window_from_ = 0;

  std::optional<EventStream> events_;
  std::optional<AnswerText> text_;
  std::string content_;
  std::vector<std::uint32_t> ids_;
  std::size_t each_ = 0;  ///< words told of a token
  ApiError error_;
};

}  // namespace wisp::gateway
