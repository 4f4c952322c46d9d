// tokenizer_check FOLDER...: compares the tokenizer of each folder with the rows of its expected.jsonl, which
// tests/oracle/real_tokenizers.py wrote. Prints counts and the first differences; ends with 1 if there are
// any.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "services/gateway/text/tokenizer.hpp"
#include "services/gateway/text/utf8_stream.hpp"

namespace {

using wisp::text::Tokenizer;
using Ids = std::vector<std::uint32_t>;
using Json = nlohmann::json;

struct Counts {
  std::size_t texts = 0, ids = 0, broken = 0, wrong_ids = 0, wrong_texts = 0, wrong_broken = 0;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string bytes_of(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

void show(const char* what, const std::string& text, const Ids& expected, const Ids& got) {
  std::size_t same = 0;
  while (same < expected.size() && same < got.size() && expected[same] == got[same]) ++same;
  const auto id_at = [same](const Ids& ids) {
    return same < ids.size() ? static_cast<long>(ids[same]) : -1L;
  };
  std::printf(
      "  %s of %s: id %zu is %ld, the reference has %ld (%zu and %zu ids)\n", what,
      Json(text.substr(0, 4000)).dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 300).c_str(),
      same, id_at(got), id_at(expected), got.size(), expected.size());
}

/// The same ids with and without control tokens; the same text of a slice of them.
void check_text(const Tokenizer& tokenizer, const Json& row, std::size_t shown, Counts& counts) {
  const auto text = row["t"].get<std::string>();
  const auto plain = row["p"].get<Ids>();
  const auto special = row.contains("s") ? row["s"].get<Ids>() : plain;
  ++counts.texts;
  counts.ids += plain.size();
  const auto got = tokenizer.encode(text, false), got_special = tokenizer.encode(text, true);
  const bool same = got.ok() && *got == plain, same_special = got_special.ok() && *got_special == special;
  if (!same || !same_special) {
    if (++counts.wrong_ids <= shown)
      same ? show("control tokens as ids", text, special, got_special.ok() ? *got_special : Ids())
           : show("ids", text, plain, got.ok() ? *got : Ids());
  }
  if (!row.contains("x")) return;
  const auto slice = row["x"];
  const Ids part(plain.begin() + slice[0].get<long>(), plain.begin() + slice[1].get<long>());
  const std::string decoded = tokenizer.decode(part, false);
  if (decoded != slice[2].get<std::string>() && ++counts.wrong_texts <= shown)
    std::printf("  decoded %s, the reference has %s\n",
                Json(decoded).dump(-1, ' ', true, Json::error_handler_t::replace).c_str(),
                slice[2].dump(-1, ' ', true).c_str());
}

/// Bytes that are not UTF-8 are refused at the byte where they begin to be wrong; with U+FFFD in their place
/// they have the reference's ids.
void check_broken(const Tokenizer& tokenizer, const Json& row, std::size_t shown, Counts& counts) {
  const std::string bytes = bytes_of(row["b"].get<std::string>());
  ++counts.broken;
  const auto refused = tokenizer.encode(bytes, false);
  wisp::text::Utf8Stream stream;
  std::string mended = stream.push(bytes);
  mended += stream.flush();
  const auto ids = tokenizer.encode(mended, false);
  const bool right =
      !refused.ok() &&
      refused.error().text.ends_with("at byte " + std::to_string(row["at"].get<std::size_t>())) &&
      mended == row["t"].get<std::string>() && ids.ok() && *ids == row["p"].get<Ids>();
  if (!right && ++counts.wrong_broken <= shown) std::printf("  bytes %s\n", row["b"].dump().c_str());
}

bool check_folder(const std::string& folder, std::size_t shown) {
  const std::string json = read_file(folder + "/tokenizer.json");
  const auto tokenizer = json.empty() ? Tokenizer::load_tiktoken(read_file(folder + "/tiktoken.model"),
                                                                 read_file(folder + "/tokenizer_config.json"))
                                      : Tokenizer::load(json);
  if (!tokenizer.ok()) {
    std::printf("%s: %s\n", folder.c_str(), tokenizer.error().text.c_str());
    return false;
  }
  Counts counts;
  std::ifstream rows(folder + "/expected.jsonl");
  for (std::string line; std::getline(rows, line);) {
    const Json row = Json::parse(line);
    row.contains("b") ? check_broken(*tokenizer, row, shown, counts)
                      : check_text(*tokenizer, row, shown, counts);
  }
  std::printf("%s: %zu texts, %zu ids, %zu texts differ, %zu decoded differ; %zu not UTF-8, %zu differ\n",
              folder.c_str(), counts.texts, counts.ids, counts.wrong_ids, counts.wrong_texts, counts.broken,
              counts.wrong_broken);
  return counts.texts > 0 && counts.wrong_ids + counts.wrong_texts + counts.wrong_broken == 0;
}

}  // namespace

int main(int argc, char** argv) {
  bool good = argc > 1;
  for (int i = 1; i < argc; ++i) good = check_folder(argv[i], 5) && good;
  return good ? 0 : 1;
}
