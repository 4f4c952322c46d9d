#include "services/gateway/logprobs.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "shm/journal.hpp"

namespace wisp::gateway {

namespace {
float number(std::uint32_t word) {
  return std::bit_cast<float>(word);
}

/// {"token":..,"logprob":..,"bytes":[..]} without its last brace.
std::string element(std::string_view bytes, float logprob) {
  std::string s = "{\"token\":" + json_string(bytes) + ",\"logprob\":" + float_json(logprob) + ",\"bytes\":[";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i != 0) s += ',';
    s += std::to_string(static_cast<unsigned char>(bytes[i]));
  }
  return s + "]";
}

/// A token's text as JSON, or "token_id:<id>" where it has none of its own.
std::string name_json(std::uint32_t token, std::string_view bytes) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string text = json_string(bytes);
  const auto has = [&](std::string_view where) { return where.find(kReplacement) != std::string_view::npos; };
  return bytes.empty() || has(text) != has(bytes) ? "\"token_id:" + std::to_string(token) + "\"" : text;
}

void append(std::string& list, const std::string& item) {
  if (!list.empty()) list += ',';
  list += item;
}
}  // namespace

std::string float_json(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, std::isfinite(value) ? value : shm::kLeastLogprob);
  return {text, end.ptr};
}

void LogprobsWriter::add(std::uint32_t token, std::span<const std::uint32_t> told, std::uint64_t offset) {
  if (chat_)
    add_chat(token, told);
  else
    add_text(token, told, offset);
}

void LogprobsWriter::add_chat(std::uint32_t token, std::span<const std::uint32_t> told) {
  std::string tops;
  for (std::size_t n = 1; n + 1 < told.size() && told[n] != shm::kNoToken; n += 2)
    append(tops, element(bytes_(told[n]), number(told[n + 1])) + "}");
  append(content_, element(bytes_(token), number(told[0])) + ",\"top_logprobs\":[" + tops + "]}");
}

void LogprobsWriter::add_text(std::uint32_t token, std::span<const std::uint32_t> told,
                              std::uint64_t offset) {
  append(content_, name_json(token, bytes_(token)));
  append(offsets_, std::to_string(offset));
  append(logprobs_, float_json(number(told[0])));
  if (told.size() == 1) return;
  std::string tops;
  std::vector<std::string> keys;
  for (std::size_t n = 1; n + 1 < told.size() && told[n] != shm::kNoToken; n += 2) {
    std::string key = name_json(told[n], bytes_(told[n]));
    if (std::find(keys.begin(), keys.end(), key) != keys.end())
      key = "\"token_id:" + std::to_string(told[n]) + "\"";
    append(tops, key + ":" + float_json(number(told[n + 1])));
    keys.push_back(std::move(key));
  }
  append(tops_, "{" + tops + "}");
}

std::string LogprobsWriter::take() {
  const std::string content = std::exchange(content_, {});
  if (chat_) return "{\"content\":[" + content + "],\"refusal\":null}";
  const std::string tops = std::exchange(tops_, {});
  return "{\"text_offset\":[" + std::exchange(offsets_, {}) + "],\"token_logprobs\":[" +
         std::exchange(logprobs_, {}) + "],\"tokens\":[" + content +
         "],\"top_logprobs\":" + (tops.empty() ? "null" : "[" + tops + "]") + "}";
}

}  // namespace wisp::gateway
