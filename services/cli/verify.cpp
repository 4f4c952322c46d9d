#include "services/cli/verify.hpp"

#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "model/verify.hpp"
#include "services/cli/model_progress.hpp"

namespace wisp::cli {
namespace {

int run(const std::string& folder) {
  ByteProgress progress("verifying");
  const auto report = model::verify(folder, std::ref(progress));
  progress.clear();
  if (!report.ok()) {
    std::fprintf(stderr, "wisp verify: %s\n", report.error().text.c_str());
    return 1;
  }
  for (const auto& b : report->bad) {
    std::fprintf(stderr, "bad: %s: %s, bytes %llu to %llu: %s\n", b.what.c_str(), b.file.c_str(),
                 static_cast<unsigned long long>(b.offset),
                 static_cast<unsigned long long>(b.offset + b.bytes), b.why.c_str());
  }
  const auto more = report->bad_count - report->bad.size();
  if (more != 0) std::fprintf(stderr, "bad: and %llu more\n", static_cast<unsigned long long>(more));
  std::printf("%s: %llu experts, %llu dense tensors and %llu texts, %s read in %.1f s: ", folder.c_str(),
              static_cast<unsigned long long>(report->experts),
              static_cast<unsigned long long>(report->dense_tensors),
              static_cast<unsigned long long>(report->texts),
              show_bytes(static_cast<double>(report->bytes)).c_str(), report->seconds);
  if (report->stripes != 0)
    std::printf("%llu stripes with it: ", static_cast<unsigned long long>(report->stripes));
  if (report->bad_count == 0)
    std::puts("all good");
  else
    std::printf("%llu bad; convert the model again\n", static_cast<unsigned long long>(report->bad_count));
  return report->bad_count == 0 ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  CLI::App* sub =
      app.add_subcommand("verify", "Check every weight and every text of a model folder, and its stripes");
  const auto folder = std::make_shared<std::string>();
  sub->add_option("MODEL", *folder, "The model folder")->required();
  sub->callback([folder, &exit_code] { exit_code = run(*folder); });
}

}  // namespace wisp::cli
