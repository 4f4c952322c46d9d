#include "services/gateway/request_fields.hpp"

#include <algorithm>
#include <array>

#include "base/json_depth.hpp"

namespace wisp::gateway {

namespace {
/// A parameter that is not implemented, and the values (JSON, separated by spaces) under which it changes
/// nothing.
struct Unsupported {
  std::string_view field;
  std::string_view neutral;
};
constexpr std::array kUnsupported{
    Unsupported{"logit_bias", "{}"},
    Unsupported{"best_of", "1"},
    Unsupported{"echo", "false"},
    Unsupported{"suffix", "\"\""},
    Unsupported{"tools", "[]"},
    Unsupported{"tool_choice", "\"none\" \"auto\""},
    Unsupported{"functions", "[]"},
    Unsupported{"function_call", "\"none\" \"auto\""},
    Unsupported{"response_format", "{\"type\":\"text\"}"},
    Unsupported{"modalities", "[\"text\"]"},
    Unsupported{"audio", ""},
    Unsupported{"prediction", ""},
    Unsupported{"web_search_options", ""},
    Unsupported{"stop_token_ids", "[]"},
    Unsupported{"min_tokens", "0"},
};

bool holds_value(std::string_view list, const std::string& value) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(' '), list.size());
    if (list.substr(0, end) == value) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

constexpr std::array<std::string_view, 5> kRoles{"system", "developer", "user", "assistant", "tool"};

std::string place(std::size_t i) {
  return "messages[" + std::to_string(i) + "]";
}

/// A content is a string, an array of text parts, or null (an assistant's turn that only called tools).
std::optional<ApiError> check_content(const Json& message, const std::string& role,
                                      const std::string& where) {
  const auto it = message.find("content");
  const std::string field = where + ".content";
  if (it == message.end() || it->is_null()) {
    if (role == "assistant") return std::nullopt;
    return bad_field(field, "is missing; only an assistant's message may have none");
  }
  if (it->is_string()) return std::nullopt;
  if (!it->is_array()) return bad_field(field, "must be a string or an array of parts");
  for (std::size_t k = 0; k < it->size(); ++k) {
    const Json& part = (*it)[k];
    const std::string at = field + "[" + std::to_string(k) + "]";
    if (!part.is_object()) return bad_field(at, "must be an object with a type");
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string()) return bad_field(at + ".type", "must be a string");
    const auto& name = type->get_ref<const std::string&>();
    if (name != "text" && name != "input_text" && name != "output_text")
      return bad_field(at + ".type", "\"" + name + "\" is not supported; this model reads text only");
    const auto value = part.find("text");
    if (value == part.end() || !value->is_string()) return bad_field(at + ".text", "must be a string");
  }
  return std::nullopt;
}
}  // namespace

const Json* FieldReader::find(std::string_view field) const {
  const auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void FieldReader::fail(std::string_view field, const std::string& message) {
  if (failed_) return;
  failed_ = true;
  error_ = bad_field(std::string(field), message);
}

void FieldReader::boolean(std::string_view field, bool& out) {
  const Json* v = find(field);
  if (v == nullptr || failed_) return;
  if (!v->is_boolean()) return fail(field, "must be true or false");
  out = v->get<bool>();
}

void FieldReader::integer(std::string_view field, std::int64_t min, std::int64_t max,
                          std::optional<std::int64_t>& out) {
  const Json* v = find(field);
  if (v == nullptr || failed_) return;
  if (!v->is_number_integer()) return fail(field, "must be an integer");
  const bool huge =
      v->is_number_unsigned() && v->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  const std::int64_t n = huge ? INT64_MAX : v->get<std::int64_t>();
  if (huge || n < min || n > max) {
    return fail(field, "is " + v->dump() + ", must be between " + std::to_string(min) + " and " +
                           std::to_string(max));
  }
  out = n;
}

void FieldReader::refuse(std::string_view field, std::string_view neutral) {
  const Json* v = find(field);
  if (v == nullptr || holds_value(neutral, v->dump(-1, ' ', false, Json::error_handler_t::replace))) return;
  std::string text = "is not supported by this server; leave it out";
  if (!neutral.empty()) text += " or set it to " + std::string(neutral.substr(0, neutral.find(' ')));
  fail(field, text);
}

void FieldReader::refuse_unsupported(Endpoint endpoint) {
  for (const Unsupported& u : kUnsupported) {
    if (failed_) return;
    refuse(u.field, u.neutral);
  }
  if (endpoint == Endpoint::kCompletion) refuse("top_logprobs", "0");
  std::optional<std::int64_t> n;
  integer("n", 1, INT64_MAX, n);
  if (n.value_or(1) != 1)
    fail("n", "is " + std::to_string(*n) + "; this server gives one choice per request");
}

ApiResult<Json> read_messages(const Json& messages) {
  if (!messages.is_array()) return bad_field("messages", "must be an array of messages");
  if (messages.empty()) return bad_field("messages", "is empty; at least one message is needed");
  Json out = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& m = messages[i];
    if (!m.is_object()) return bad_field(place(i), "must be an object with role and content");
    const auto role = m.find("role");
    if (role == m.end() || !role->is_string()) return bad_field(place(i) + ".role", "must be a string");
    std::string name = role->get<std::string>();
    if (std::find(kRoles.begin(), kRoles.end(), name) == kRoles.end())
      return bad_field(place(i) + ".role",
                       "\"" + name + "\" is unknown: system, developer, user, assistant or tool");
    if (auto wrong = check_content(m, name, place(i))) return std::move(*wrong);
    // Templates know the role by its older name.
    if (name == "developer") name = "system";
    Json& copy = out.emplace_back(m);
    copy["role"] = std::move(name);
  }
  return out;
}

ApiResult<Json> read_body(std::string_view body) {
  if (json_too_deep(body))
    return ApiError{400, "the body is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels", "",
                    "", 0};
  try {
    Json value = Json::parse(body.begin(), body.end());
    if (!value.is_object()) return ApiError{400, "the body must be a JSON object", "", "", 0};
    return value;
  } catch (const Json::exception& e) {
    return ApiError{400, std::string("the body is not JSON in UTF-8: ") + e.what(), "", "", 0};
  }
}

}  // namespace wisp::gateway
