#pragma once
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.hpp"

namespace wisp {

/// What kind of failure an Error is; decides HTTP statuses and exit codes.
enum class ErrorCode {
  kInvalid,      ///< input is malformed or out of range
  kUnsupported,  ///< well-formed, but not something this build can do
  kNotFound,     ///< a file, tensor, request or stage that is not there
  kIo,           ///< the operating system refused or the device failed
  kExhausted,    ///< memory, disk, slots or another budget does not suffice
  kCorrupt,      ///< a checksum or an invariant of stored data does not hold
  kUnavailable,  ///< the part that would answer is down
  kInterrupted,  ///< whoever asked has asked to stop
};

/// A failure that names the thing, the cause and the way out.
struct Error {
  ErrorCode code = ErrorCode::kInvalid;
  std::string text;

  /// Prefixes `where: ` so that the final message reads from the outside in.
  Error within(const std::string& where) && {
    text = where + ": " + text;
    return std::move(*this);
  }
};

/// A value or an Error. Never both, never neither.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    WISP_CHECK(ok());
    return std::get<0>(state_);
  }
  const T& value() const& {
    WISP_CHECK(ok());
    return std::get<0>(state_);
  }
  T&& value() && {
    WISP_CHECK(ok());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Error& error() & {
    WISP_CHECK(!ok());
    return std::get<1>(state_);
  }
  const Error& error() const& {
    WISP_CHECK(!ok());
    return std::get<1>(state_);
  }
  Error&& error() && {
    WISP_CHECK(!ok());
    return std::get<1>(std::move(state_));
  }

 private:
  std::variant<T, Error> state_;
};

/// Success, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  Error& error() & {
    WISP_CHECK(error_.has_value());
    return *error_;
  }
  const Error& error() const& {
    WISP_CHECK(error_.has_value());
    return *error_;
  }
  Error&& error() && {
    WISP_CHECK(error_.has_value());
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};
using Status = Result<void>;

inline Error invalid(std::string text) {
  return {ErrorCode::kInvalid, std::move(text)};
}
inline Error unsupported(std::string text) {
  return {ErrorCode::kUnsupported, std::move(text)};
}
inline Error not_found(std::string text) {
  return {ErrorCode::kNotFound, std::move(text)};
}
inline Error io_error(std::string text) {
  return {ErrorCode::kIo, std::move(text)};
}
inline Error exhausted(std::string text) {
  return {ErrorCode::kExhausted, std::move(text)};
}
inline Error corrupt(std::string text) {
  return {ErrorCode::kCorrupt, std::move(text)};
}
inline Error unavailable(std::string text) {
  return {ErrorCode::kUnavailable, std::move(text)};
}
inline Error interrupted(std::string text) {
  return {ErrorCode::kInterrupted, std::move(text)};
}

/// `WISP_TRY(expr);` returns the Error of a failed Status or Result from the calling function.
#define WISP_TRY(expr)                                        \
  do {                                                        \
    auto wisp_try_ = (expr);                                  \
    if (!wisp_try_.ok()) return std::move(wisp_try_).error(); \
  } while (false)

/// `WISP_ASSIGN(auto x, expr);` binds the value of a Result or returns its Error.
#define WISP_ASSIGN(decl, expr) WISP_ASSIGN_IMPL_(WISP_CAT_(wisp_r_, __LINE__), decl, expr)
#define WISP_CAT_(a, b) WISP_CAT2_(a, b)
#define WISP_CAT2_(a, b) a##b
#define WISP_ASSIGN_IMPL_(tmp, decl, expr)      \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return std::move(tmp).error(); \
  decl = std::move(tmp).value()

}  // namespace wisp
