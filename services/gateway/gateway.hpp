#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/manifest.hpp"
#include "service/stage.hpp"
#include "services/gateway/answer.hpp"
#include "services/gateway/http_session.hpp"
#include "services/gateway/outbox.hpp"
#include "services/gateway/prompt.hpp"
#include "services/gateway/prompt_worker.hpp"
#include "services/gateway/stage_watch.hpp"

namespace wisp::gateway {

/// Answers requests: takes them in, hands them to the router, and writes what the journal says to whoever
/// waits. Everything here can be lost: a client that comes back with its event id is served from the journal.
class Gateway final : public HttpHandler {
 public:
  Gateway(service::StageContext& ctx, const text::TemplateHelper::Options& helper);
  /// Reads the manifest and the tokenizer of the run's model.
  Status load();

  /// Reads rings and journal and moves every answer on; true if anything happened.
  bool pump();
  /// Whether pump() would find something.
  bool has_work() const;
  /// A message waits for space on edge 1.
  bool blocked() const { return !outbox_.empty(); }
  /// How long a sleep may last, ns.
  std::uint64_t patience_ns() const;

  void on_request(const std::shared_ptr<Session>& session, HttpRequest request) override;
  void on_writable(Session& session) override;
  void on_answered(Session& session) override;
  void on_gone(Session& session) override;
  std::uint64_t engine_now() const override { return ctx_.now(); }
  std::uint64_t max_body_bytes() const override { return plan::max_body_bytes(ctx_.plan().ctx); }

 private:
  /// An answer and the connection that it goes to.
  struct Open {
    std::shared_ptr<Session> client;
    Answer answer;
    std::string notices = {};  ///< comment lines that wait for the connection
    bool head_sent = false;
    bool ended = false;          ///< its last bytes are being written
    std::uint32_t shown_kv = 0;  ///< prompt positions told by a comment
    std::uint64_t sent_ns = 0;   ///< monotonic time of the last bytes
  };

  /// A request whose prompt is being made, and its connection.
  struct Waiting {
    std::shared_ptr<Session> client;
    std::shared_ptr<const ApiRequest> request;
    bool default_max_all = false;
  };

  void answer_completion(const std::shared_ptr<Session>& session, Endpoint endpoint,
                         const HttpRequest& request);
  std::optional<ApiError> refuse_new() const;
  bool submit_made();
  /// Hands a request whose prompt is made to the router, or tells its client why not.
  void settle_made(const Waiting& asked, const ApiResult<std::vector<std::uint32_t>>& prompt);
  ApiResult<std::uint64_t> submit(const Waiting& asked, const ApiResult<std::vector<std::uint32_t>>& prompt);
  void open(const std::shared_ptr<Session>& session, const ApiRequest& request, const ResumePoint& point);
  ApiResult<ResumePoint> resume(const std::string& event_id);
  void answer_models(Session& session, const std::string& path);
  void answer_health(Session& session);
  void reply_error(Session& session, const ApiError& error, const std::string& headers = "");
  bool known(std::uint64_t request) const;
  /// Positions that a prompt and its answer may take.
  std::uint32_t max_positions() const { return std::min(ctx_.plan().ctx, journal_.capacity()); }

  bool advance(Open& open);
  bool write_head(Open& open);
  bool write_step(Open& open, Answer::Step step, std::string out);
  bool write_comment(Open& open);
  bool send(Open& open, const std::string& text, bool last);
  bool end_with(Open& open, const ApiError& error);
  bool retire_finished();
  void retire(std::uint64_t request, bool cancel);
  bool watch_stages();

  service::StageContext& ctx_;
  model::Manifest manifest_;
  std::uint64_t model_created_s_ = 0;
  PromptMaker prompts_;
  shm::JournalReader journal_;
  Outbox outbox_;
  ring::Consumer from_router_;
  StageWatch stages_;
  std::map<std::uint64_t, Open> open_;
  std::map<std::uint64_t, Waiting> waiting_;  ///< by the ticket of its prompt
  std::vector<std::uint64_t>
      closing_;  ///< nobody listens any more; acknowledged once their record is finished
  std::uint32_t next_request_ = 1;
  std::optional<PromptWorker> worker_;  ///< last: it uses the others until it has ended
};

}  // namespace wisp::gateway
