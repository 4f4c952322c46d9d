#include <spdlog/spdlog.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "services/gateway/gateway.hpp"

namespace wisp::gateway {

using ring::Kind;
using stats::Counter;

namespace {
constexpr std::string_view kModelPrefix = "/v1/models/";

/// A path that exists, and the one method that it answers.
struct Route {
  std::string_view path;
  std::string_view method;
};
constexpr std::array kRoutes{Route{"/v1/chat/completions", "POST"}, Route{"/v1/completions", "POST"},
                             Route{"/v1/models", "GET"}, Route{"/health", "GET"}};

std::optional<Route> route_of(std::string_view path) {
  for (const Route& r : kRoutes)
    if (r.path == path) return r;
  if (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size()) return Route{kModelPrefix, "GET"};
  return std::nullopt;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0;
    if (!escape) {
      out += text[i];
      continue;
    }
    out += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
    i += 2;
  }
  return out;
}

/// 53 bits, so that a client whose numbers are doubles reads back the seed that was used.
std::uint64_t draw_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != static_cast<ssize_t>(sizeof seed)) seed = shm::monotonic_now();
  return seed & ((std::uint64_t{1} << 53) - 1);
}
}  // namespace

void Gateway::on_request(const std::shared_ptr<Session>& session, HttpRequest request) {
  ctx_.desk()->add(Counter::kHttpRequests);
  const auto route = route_of(request.path);
  if (!route)
    return reply_error(*session, {404, request.path + " does not exist here", "", "unknown_url", 0});
  if (route->method != request.method)
    return reply_error(
        *session,
        {405, request.path + " answers " + std::string(route->method) + " only", "", "method_not_allowed", 0},
        "Allow: " + std::string(route->method) + "\r\n");
  // Browsers send simple requests without asking, and any page could spend this machine's time.
  if (request.foreign_page && request.method == "POST")
    return reply_error(*session,
                       {403, "a page of another site may not ask this server", "", "cross_site", 0});
  try {
    if (route->path == "/health") return answer_health(*session);
    if (route->method == "GET") return answer_models(*session, request.path);
    answer_completion(session, route->path == "/v1/completions" ? Endpoint::kCompletion : Endpoint::kChat,
                      request);
  } catch (const std::exception& e) {
    spdlog::error("{}: {}", request.path, e.what());
    if (session->tag == 0)
      reply_error(*session, {500, std::string("the gateway failed: ") + e.what(), "", "", 0});
  }
}

void Gateway::reply_error(Session& session, const ApiError& error, const std::string& headers) {
  ctx_.desk()->add(Counter::kHttpErrors);
  std::string all = headers;
  if (error.retry_after_s != 0) all += "Retry-After: " + std::to_string(error.retry_after_s) + "\r\n";
  session.reply({error.status, error_body(error), all});
}

void Gateway::answer_models(Session& session, const std::string& path) {
  const std::string& name = ctx_.plan().model_name;
  if (path == "/v1/models") return session.reply({200, models_body(name, model_created_s_), ""});
  const std::string asked = percent_decoded(std::string_view(path).substr(kModelPrefix.size()));
  if (asked == name) return session.reply({200, model_json(name, model_created_s_), ""});
  reply_error(session, {404, "\"" + asked + "\" is not served here; this server has \"" + name + "\"",
                        "model", "model_not_found", 0});
}

void Gateway::answer_health(Session& session) {
  const auto why = stages_.unready();
  if (!why) return session.reply({200, "{\"status\":\"ok\"}", ""});
  session.reply(
      {503, "{\"status\":\"unavailable\",\"reason\":" + json_string(*why) + "}", "Retry-After: 1\r\n"});
}

void Gateway::answer_completion(const std::shared_ptr<Session>& session, Endpoint endpoint,
                                const HttpRequest& http) {
  auto parsed = parse_request(endpoint, http.body, ctx_.plan().model_name);
  if (const auto* e = std::get_if<ApiError>(&parsed)) return reply_error(*session, *e);
  ApiRequest& request = std::get<ApiRequest>(parsed);
  if (!http.last_event_id.empty()) {
    auto found = resume(http.last_event_id);
    if (const auto* e = std::get_if<ApiError>(&found)) return reply_error(*session, *e);
    return open(session, request, std::get<ResumePoint>(found));
  }
  if (const auto refusal = refuse_new()) return reply_error(*session, *refusal);
  Waiting asked{session, std::make_shared<const ApiRequest>(std::move(request)), http.default_max_all};
  // Ids need nothing made, so they wait for no template.
  if (endpoint == Endpoint::kCompletion && !asked.request->prompt)
    return settle_made(asked, asked.request->prompt_ids);
  const std::uint64_t ticket = worker_->ask(asked.request);
  waiting_.emplace(ticket, std::move(asked));
}

bool Gateway::submit_made() {
  bool worked = false;
  while (const auto made = worker_->take()) {
    worked = true;
    ctx_.desk()->add(Counter::kHelperRestarts, made->helper_restarts);
    const auto node = waiting_.extract(made->ticket);
    if (!node.empty()) settle_made(node.mapped(), made->ids);  // else its client is gone
  }
  return worked;
}

void Gateway::settle_made(const Waiting& asked, const ApiResult<std::vector<std::uint32_t>>& prompt) {
  asked.client->body_done();
  try {
    auto id = submit(asked, prompt);
    if (const auto* e = std::get_if<ApiError>(&id)) return reply_error(*asked.client, *e);
    open(asked.client, *asked.request, {std::get<std::uint64_t>(id), std::nullopt});
  } catch (const std::exception& e) {
    spdlog::error("a prompt: {}", e.what());
    if (asked.client->tag == 0)
      reply_error(*asked.client, {500, std::string("the gateway failed: ") + e.what(), "", "", 0});
  }
}

void Gateway::open(const std::shared_ptr<Session>& session, const ApiRequest& request,
                   const ResumePoint& point) {
  AnswerShape shape{ctx_.plan().model_name, request.endpoint, request.stop, request.include_usage,
                    request.return_token_ids};
  session->tag = point.request;
  const auto bytes = [this](std::uint32_t token) { return prompts_.bytes(token); };
  open_.emplace(point.request,
                Open{session, Answer(point.request, std::move(shape), request.stream, bytes, point.last)});
  outbox_.flush();
  (void)advance(open_.at(point.request));
}

std::optional<ApiError> Gateway::refuse_new() const {
  if (const auto why = stages_.given_up()) return ApiError{503, *why, "", "unavailable", 5};
  if (ctx_.life().shutting_down.load(std::memory_order_acquire) != 0)
    return ApiError{503, "the server is shutting down", "", "unavailable", 5};
  // Submissions first: one that the router reads in between then counts as a record, not as neither.
  const std::vector<std::uint64_t> unread = outbox_.unread_submissions();
  const std::vector<std::uint64_t> records = journal_.requests();
  const auto unopened = std::count_if(unread.begin(), unread.end(), [&](std::uint64_t r) {
    return std::find(records.begin(), records.end(), r) == records.end();
  });
  // An answer that its client has not read yet keeps its place, also when its record has expired.
  const auto unread_answers = std::count_if(open_.begin(), open_.end(), [&](const auto& o) {
    return o.second.ended && std::find(records.begin(), records.end(), o.first) == records.end();
  });
  const auto promised = unopened + unread_answers + static_cast<std::ptrdiff_t>(waiting_.size());
  if (std::count(records.begin(), records.end(), 0u) > promised) return std::nullopt;
  return ApiError{429,
                  "all " + std::to_string(records.size()) +
                      " places for requests are taken, waiting ones included; "
                      "try again later, or start the server with a larger --parallel",
                  "", "queue_full", 1};
}

ApiResult<std::uint64_t> Gateway::submit(const Waiting& asked,
                                         const ApiResult<std::vector<std::uint32_t>>& prompt) {
  if (const auto* e = std::get_if<ApiError>(&prompt)) return *e;
  // Once more: an engine may give up while a template renders.
  if (auto refusal = refuse_new()) return std::move(*refusal);
  const auto& ids = std::get<std::vector<std::uint32_t>>(prompt);
  const Limits limits{max_positions(), manifest_.spec.vocab, !ctx_.plan().options.logits_dir.empty(),
                      asked.default_max_all, journal_.logprobs()};
  auto settled = settle(*asked.request, manifest_.generation, limits, draw_seed(),
                        static_cast<std::uint64_t>(std::time(nullptr)), ids);
  if (auto* e = std::get_if<ApiError>(&settled)) return std::move(*e);
  if (!outbox_.can_carry(ids.size()))
    return ApiError{
        500, "a prompt of " + std::to_string(ids.size()) + " tokens does not fit the ring to the router", "",
        "", 0};
  const std::uint64_t id = std::uint64_t{ctx_.epoch()} << 32 | next_request_++;
  outbox_.submit(id, std::get<shm::RequestParams>(settled), ids);
  ctx_.desk()->add(Counter::kRequests);
  return id;
}

bool Gateway::known(std::uint64_t request) const {
  // The submission may stand in the ring still, where an earlier gateway left it. Between the first look and
  // the second the router may have opened the record: hence the third.
  return journal_.find(request) || outbox_.carries(request, Kind::kSubmit) || journal_.find(request);
}

ApiResult<ResumePoint> Gateway::resume(const std::string& event_id) {
  const auto point = parse_event_id(event_id);
  if (!point)
    return ApiError{400, "is not <request>/<number> or <request>/-", "Last-Event-ID", "invalid_value", 0};
  const ApiError gone{404,
                      "request " + std::to_string(point->request) + " is gone; send it without Last-Event-ID",
                      "", "gone", 0};
  const bool closing = std::find(closing_.begin(), closing_.end(), point->request) != closing_.end() ||
                       outbox_.carries(point->request, Kind::kAcknowledge);
  if (closing || !known(point->request)) return gone;
  if (const auto record = journal_.find(point->request)) {
    const auto state = journal_.state(*record, point->request);
    if (!state || state->commit.finish == shm::Finish::kCancelled) return gone;
  }
  if (const auto it = open_.find(point->request); it != open_.end()) {
    if (it->second.ended) return gone;
    // The client knows sooner than we do that its old connection is dead.
    const auto old = it->second.client;
    open_.erase(it);
    old->abandon();
  }
  outbox_.tell(Kind::kAdopt, point->request, 0, ctx_.epoch());
  ctx_.desk()->add(Counter::kResumes);
  return *point;
}

}  // namespace wisp::gateway
