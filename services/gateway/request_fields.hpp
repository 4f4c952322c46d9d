#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "services/gateway/openai_api.hpp"

namespace wisp::gateway {

using Json = nlohmann::ordered_json;

/// Reads fields of a request's object. The first wrong one is kept as the error; readers after it do nothing.
class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(object) {}

  bool failed() const { return failed_; }
  ApiError take_error() { return std::move(error_); }
  void fail(std::string_view field, const std::string& message);

  /// The field, or nullptr where it is absent or null.
  const Json* find(std::string_view field) const;
  void boolean(std::string_view field, bool& out);
  template <class T>
  void real(std::string_view field, double min, double max, std::optional<T>& out);
  /// An integer in [min, max].
  void integer(std::string_view field, std::int64_t min, std::int64_t max, std::optional<std::int64_t>& out);

  /// Refuses what would change the answer and is not implemented, unless it has its neutral value.
  void refuse_unsupported(Endpoint endpoint);

 private:
  void refuse(std::string_view field, std::string_view neutral);
  const Json& object_;
  bool failed_ = false;
  ApiError error_;
};

template <class T>
void FieldReader::real(std::string_view field, double min, double max, std::optional<T>& out) {
  const Json* v = find(field);
  if (v == nullptr || failed_) return;
  if (!v->is_number()) return fail(field, "must be a number");
  const double d = v->get<double>();
  if (!(d >= min && d <= max)) {
    return fail(field,
                "is " + v->dump() + ", must be between " + Json(min).dump() + " and " + Json(max).dump());
  }
  out = static_cast<T>(d);
}

/// Checks `messages`: known roles, contents of text (a string, parts or null). Other keys are left as sent.
ApiResult<Json> read_messages(const Json& messages);

/// Parses a body: an object, at most 64 levels deep, UTF-8.
ApiResult<Json> read_body(std::string_view body);

}  // namespace wisp::gateway
