#include "services/cli/eval.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "model/json.hpp"
#include "plan/cpus.hpp"
#include "services/eval/score.hpp"
#include "services/gateway/text/tokenizer_folder.hpp"

namespace wisp::cli {
namespace {

/// Of a file to score.
constexpr std::uint64_t kMaxBytes = std::uint64_t{256} << 20;

using Lines = std::vector<eval::ScoredLine>;

struct Flags {
  eval::ScoreOptions options;
  std::string file, kv = "f32", against;
  bool ids = false, json = false;
  std::uint64_t tokens = 0;  ///< at most, 0 = all
};

/// Lines of ids with commas or blanks between them; blank lines count for nothing.
Result<Lines> parse_ids(std::string_view text) {
  Lines out;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    std::vector<std::uint32_t> ids;
    while (!line.empty()) {
      if (line[0] == ',' || line[0] == ' ' || line[0] == '\r' || line[0] == '\t') {
        line.remove_prefix(1);
        continue;
      }
      std::uint32_t id = 0;
      const auto [rest, ec] = std::from_chars(line.data(), line.data() + line.size(), id);
      if (ec != std::errc())
        return invalid("line " + std::to_string(number) + ": '" + model::printable(line.substr(0, 20)) +
                       "' is no token id");
      ids.push_back(id);
      line.remove_prefix(static_cast<std::size_t>(rest - line.data()));
    }
    if (!ids.empty()) out.push_back({number, std::move(ids)});
  }
  return out;
}

Result<Lines> read_lines(const Flags& f) {
  WISP_ASSIGN(const std::string text, model::read_text_file(f.file, kMaxBytes));
  Lines lines;
  if (f.ids) {
    auto parsed = parse_ids(text);
    if (!parsed.ok()) return std::move(parsed).error().within(f.file);
    lines = *std::move(parsed);
  } else {
    WISP_ASSIGN(const auto tokenizer, text::load_tokenizer(f.options.model));
    if (!tokenizer) return invalid(f.options.model + ": has no tokenizer; give lines of ids and --ids");
    WISP_ASSIGN(auto ids, tokenizer->encode(text, true));
    WISP_ASSIGN(const auto first, text::first_tokens(f.options.model, *tokenizer));
    text::begin_with(first, ids);
    lines.push_back({1, std::move(ids)});
  }
  std::uint64_t left = f.tokens == 0 ? UINT64_MAX : f.tokens;
  for (auto& line : lines) {
    if (line.ids.size() > left) line.ids.resize(left);
    left -= line.ids.size();
  }
  std::erase_if(lines, [](const auto& line) { return line.ids.size() < 2; });
  if (lines.empty()) return invalid(f.file + ": holds no two tokens in a row");
  return lines;
}

void print(const Flags& f, const eval::Score& s) {
  const auto n = static_cast<double>(s.tokens);
  if (f.json) {
    nlohmann::ordered_json j{{"tokens", s.tokens}, {"profile", s.profile}, {"nats_per_token", s.nats / n}};
    if (f.options.against_exact)
      j.update({{"exact_nats_per_token", s.exact_nats / n},
                {"mean_divergence", s.divergence / n},
                {"same_first", static_cast<double>(s.same_first) / n},
                {"largest_difference", s.largest_difference}});
    std::printf("%s\n", j.dump().c_str());
    return;
  }
  std::printf("%llu tokens in the %s profile, %.5f nats a token (perplexity %.3f)\n",
              static_cast<unsigned long long>(s.tokens), s.profile.c_str(), s.nats / n, std::exp(s.nats / n));
  if (f.options.against_exact)
    std::printf(
        "against exact: %+.5f nats a token, mean KL %.3g nats, the same first token in %.3f %%, a logit off "
        "by at most %.4g\n",
        (s.nats - s.exact_nats) / n, s.divergence / n, 100.0 * static_cast<double>(s.same_first) / n,
        s.largest_difference);
}

int run(Flags& f) {
  f.options.against_exact = !f.against.empty();
  if (f.kv == "bf16") f.options.kv = kernels::KvFormat::kBf16;
  const auto lines = read_lines(f);
  if (!lines.ok()) {
    std::fprintf(stderr, "wisp eval: %s\n", lines.error().text.c_str());
    return 1;
  }
  const auto progress = [tty = ::isatty(STDERR_FILENO) == 1](std::uint64_t done, std::uint64_t total) {
    if (tty)
      std::fprintf(stderr, "\rscoring %llu of %llu tokens\x1b[K", static_cast<unsigned long long>(done),
                   static_cast<unsigned long long>(total));
  };
  const auto score = eval::score(f.options, *lines, progress);
  if (::isatty(STDERR_FILENO) == 1) std::fputs("\r\x1b[K", stderr);
  if (!score.ok()) {
    std::fprintf(stderr, "wisp eval: %s: %s\n", f.file.c_str(), score.error().text.c_str());
    return 1;
  }
  print(f, *score);
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, int& exit_code) {
  CLI::App* sub = app.add_subcommand("eval", "Score a text, or lines of ids, token by token");
  const auto f = std::make_shared<Flags>();
  f->options.threads = plan::usable_cores();
  sub->add_option("MODEL", f->options.model, "The model folder")->required();
  sub->add_option("--file", f->file,
                  "What is scored: text, read as a completion's prompt is, or ids with --ids")
      ->required();
  sub->add_flag("--ids", f->ids, "The file holds token ids; each line is scored for itself");
  sub->add_option("--window", f->options.window,
                  "Text is cut into blocks of so many tokens, each scored from its second one on")
      ->check(CLI::Range(2u, 1u << 20))
      ->capture_default_str();
  sub->add_option("--tokens", f->tokens, "Take only the first so many tokens")->check(CLI::Range(2.0, 1e15));
  sub->add_option("--profile", f->options.profile, "Numerics")
      ->check(CLI::IsMember({"auto", "exact", "fast"}))
      ->capture_default_str();
  sub->add_option("--kv", f->kv, "Format of keys and values")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  sub->add_option("--against", f->against, "exact: compare every row with the exact profile's")
      ->check(CLI::IsMember({"exact"}));
  sub->add_option("--threads", f->options.threads, "Compute threads")
      ->check(CLI::Range(1u, 256u))
      ->capture_default_str();
  sub->add_flag("--json", f->json, "One JSON object");
  sub->callback([f, &exit_code] { exit_code = run(*f); });
}

}  // namespace wisp::cli
