// tokenizer_bench FOLDER FILE [BYTES]: encodes FILE, cut at line ends into documents of about BYTES (4096; 0:
// in one), once for each line it reads, and prints the seconds of processor time and the ids. On one thread.
// tokenizer_rivals.py runs it in turns with the reference libraries.
#include <time.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/tokenizer.hpp"

namespace {

using wisp::text::Tokenizer;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::vector<std::string_view> documents(std::string_view text, std::size_t bytes) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const std::size_t end =
        bytes == 0 || bytes >= text.size() ? std::string_view::npos : text.find('\n', bytes);
    out.push_back(text.substr(0, end == std::string_view::npos ? end : end + 1));
    text.remove_prefix(out.back().size());
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "tokenizer_bench FOLDER FILE [BYTES]\n"), 2;
  const std::string folder = argv[1];
  const std::string json = read_file(folder + "/tokenizer.json");
  const auto tokenizer = json.empty() ? Tokenizer::load_tiktoken(read_file(folder + "/tiktoken.model"),
                                                                 read_file(folder + "/tokenizer_config.json"))
                                      : Tokenizer::load(json);
  if (!tokenizer.ok()) return std::fprintf(stderr, "%s\n", tokenizer.error().text.c_str()), 1;
  const std::string text = read_file(argv[2]);
  const auto parts = documents(text, argc > 3 ? std::stoul(argv[3]) : 4096);
  for (std::string line; std::getline(std::cin, line);) {
    std::size_t ids = 0;
    const double begin = cpu_seconds();
    for (const std::string_view part : parts) {
      const auto encoded = tokenizer->encode(part, true);
      if (!encoded.ok()) return std::fprintf(stderr, "%s\n", encoded.error().text.c_str()), 1;
      ids += encoded->size();
    }
    std::printf("%.9f %zu\n", cpu_seconds() - begin, ids);
    std::fflush(stdout);
  }
  return 0;
}
