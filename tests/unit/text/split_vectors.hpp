#pragma once
#include <algorithm>
#include <string>

#include "tests/unit/text/text_fixtures.hpp"

namespace wisp::text {

/// What tests/oracle/split_vectors.py wrote.
inline const nlohmann::json& split_vectors() {
  static const auto json = nlohmann::json::parse(read_file(WISP_TEXT_SPLITS));
  return json;
}

/// The two files of a small vocabulary in Kimi's form.
inline std::string kimi_ranks() {
  return split_vectors()["kimi"]["ranks"].get<std::string>();
}
inline nlohmann::json kimi_config() {
  return split_vectors()["kimi"]["config"];
}

inline Tokenizer kimi_or_die(const std::string& ranks, const nlohmann::json& config) {
  Result<Tokenizer> loaded = Tokenizer::load_tiktoken(ranks, config.dump());
  EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().text);
  return std::move(loaded).value();
}

}  // namespace wisp::text
