#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.hpp"

namespace wisp::model {

using Json = nlohmann::json;

/// No config or index of a real model is larger; stops a file that would fill the memory.
inline constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{64} << 20;

/// Reads a whole small file. Errors: kNotFound, kIo, kInvalid (larger than `max_bytes`).
Result<std::string> read_text_file(const std::string& path, std::uint64_t max_bytes = kMaxJsonBytes);

/// Parses `text`; `what` (a file name) leads the error. The result is an object.
Result<Json> parse_json_object(std::string_view text, const std::string& what);

/// A name or value out of a hostile file, made fit for one line of an error: cut, control bytes replaced.
std::string printable(std::string_view text);

/// Checked access to the keys of one JSON object: every getter returns an Error that names the file, the key
/// and what is wrong. A key whose value is null counts as absent. Borrows the object.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(&object), where_(std::move(where)) {}

  /// The value, or nullptr where the key is absent or null.
  const Json* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  Result<std::uint64_t> u64(std::string_view key, std::uint64_t min, std::uint64_t max) const;
  Result<std::uint32_t> u32(std::string_view key, std::uint32_t min, std::uint32_t max) const;
  Result<std::uint32_t> u32_or(std::string_view key, std::uint32_t fallback, std::uint32_t min,
                               std::uint32_t max) const;
  /// A finite number in [min, max].
  Result<double> number(std::string_view key, double min, double max) const;
  Result<double> number_or(std::string_view key, double fallback, double min, double max) const;
  Result<bool> boolean(std::string_view key) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> text(std::string_view key) const;
  Result<std::string> text_or(std::string_view key, std::string fallback) const;
  Result<Fields> object(std::string_view key) const;
  Result<const Json*> array(std::string_view key) const;

  /// `where: key <text>`
  Error wrong(std::string_view key, std::string_view text) const;
  const std::string& where() const { return where_; }
  const Json& json() const { return *object_; }

 private:
  Error missing(std::string_view key) const { return wrong(key, "is missing"); }
  const Json* object_;
  std::string where_;
};

}  // namespace wisp::model
