#pragma once
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "services/gateway/text/tokenizer.hpp"

namespace wisp::text {

using OrderedJson = nlohmann::ordered_json;

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string pocket_path(const std::string& name) {
  return std::string(WISP_TEST_DATA) + "/pocket-dictionary/" + name;
}

/// The bundled checkpoint's tokenizer.json, parsed once.
inline const nlohmann::json& pocket_json() {
  static const nlohmann::json json = nlohmann::json::parse(read_file(pocket_path("tokenizer.json")));
  return json;
}

inline Tokenizer load_or_die(const nlohmann::json& json) {
  Result<Tokenizer> loaded = Tokenizer::load(json.dump());
  EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().text);
  return std::move(loaded).value();
}

inline const Tokenizer& pocket() {
  static const Tokenizer tokenizer = load_or_die(pocket_json());
  return tokenizer;
}

/// What tests/oracle/tokenizer_vectors.py wrote.
inline const OrderedJson& vectors() {
  static const OrderedJson json = OrderedJson::parse(read_file(WISP_TEXT_VECTORS));
  return json;
}

}  // namespace wisp::text
