// Feeds hostile bytes to the readers of text: a tokenizer.json, a prompt, a stream of token bytes.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/check.hpp"
#include "services/gateway/text/stop_matcher.hpp"
#include "services/gateway/text/tokenizer.hpp"
#include "services/gateway/text/unicode.hpp"
#include "services/gateway/text/utf8_stream.hpp"

namespace {

using wisp::text::Tokenizer;

/// A whole tokenizer.json with the 256 bytes, a few merges and a few added tokens.
nlohmann::json small_file() {
  nlohmann::json vocab;
  unsigned other = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    std::string key;
    wisp::text::append_utf8(key, prints ? byte : other++);
    vocab[key] = byte;
  }
  for (const char* key : {"ab", "abc", "bc", "aa", "aaaa"}) vocab[key] = vocab.size();
  const nlohmann::json split = {
      {"type", "Split"},
      {"pattern", {{"Regex", R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+)"}}},
      {"behavior", "Isolated"}};
  const nlohmann::json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"added_tokens",
           {{{"id", 300}, {"content", "<|a|>"}, {"special", true}},
            {{"id", 301}, {"content", "<|a|><|"}, {"special", true}, {"lstrip", true}},
            {{"id", 302}, {"content", "<t>"}, {"rstrip", true}, {"normalized", true}}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "b c", "ab c", "a a", "aa aa"}}}}};
}

/// A tiktoken.model with the 256 bytes and a few tokens.
const std::string& small_ranks() {
  static const std::string ranks = [] {
    const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (unsigned byte = 0; byte < 256; ++byte)
      out += std::string{digits[byte >> 2], digits[(byte & 3) << 4]} + "== " + std::to_string(byte) + "\n";
    return out + "YWI= 256\nYWJj 257\nYmM= 258\nYWE= 259\nYWFhYQ== 260\n";
  }();
  return ranks;
}
constexpr const char* kConfig = R"({"added_tokens_decoder": {"261": {"content": "<|a|>", "special": true}}})";

void use(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool special : {false, true}) {
    const auto ids = tokenizer.encode(text, special);
    if (!ids) continue;
    for (const std::uint32_t id : *ids) WISP_CHECK(id < tokenizer.vocab_size());
    for (const bool skip : {false, true}) {
      WISP_CHECK(wisp::text::find_invalid_utf8(tokenizer.decode(*ids, skip)) == std::string_view::npos);
    }
    if (special) continue;
    for (const std::uint32_t id : *ids) WISP_CHECK(!tokenizer.is_special(id));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const nlohmann::json file = small_file();
  static const Tokenizer small = Tokenizer::load(file.dump()).value();
  static const Tokenizer kimi = Tokenizer::load_tiktoken(small_ranks(), kConfig).value();
  const std::string text(reinterpret_cast<const char*>(data), size);

  // The input as a prompt, as a whole file, and as a patch of a good file, which gets past the outer checks.
  use(small, text);
  if (auto loaded = Tokenizer::load(text)) use(*loaded, "abc <|a|> 123");
  if (auto loaded = Tokenizer::load_tiktoken(small_ranks() + text, kConfig)) use(*loaded, "abc <|a|> 123");
  if (auto loaded = Tokenizer::load_tiktoken(small_ranks(), text)) use(*loaded, text);
  use(kimi, text);
  const nlohmann::json patch = nlohmann::json::parse(text, nullptr, false);
  if (patch.is_object() && size < 4096) {
    nlohmann::json patched = file;
    patched.merge_patch(patch);
    if (auto loaded = Tokenizer::load(patched.dump())) use(*loaded, "abc <|a|> 123");
  }

  // However the bytes are cut, the text is the same and is UTF-8.
  wisp::text::Utf8Stream whole;
  wisp::text::Utf8Stream bytewise;
  const std::string once = whole.push(text) + whole.flush();
  std::string slowly;
  for (const char c : text) slowly += bytewise.push(std::string_view(&c, 1));
  slowly += bytewise.flush();
  WISP_CHECK(once == slowly && wisp::text::find_invalid_utf8(once) == std::string_view::npos);

  auto matcher = wisp::text::StopMatcher::create({"abc", "bb", "<|a|>"});
  std::string released;
  for (const char c : once) released += matcher->push(std::string_view(&c, 1)).text;
  released += matcher->flush();
  WISP_CHECK(once.starts_with(released) && released.find("abc") == std::string::npos);
  return 0;
}
