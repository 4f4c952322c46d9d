#include "services/cli/convert.hpp"

#include <cstdio>
#include <functional>
#include <memory>

#include "model/convert.hpp"
#include "services/cli/model_progress.hpp"

namespace wisp::cli {
namespace {

int run(const model::ConvertOptions& options) {
  ByteProgress progress("converting");
  const auto report = model::convert(options, std::ref(progress));
  progress.clear();
  if (!report.ok()) {
    std::fprintf(stderr, "wisp convert: %s\n", report.error().text.c_str());
    return 1;
  }
  for (const auto& note : report->notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  const double rate = report->seconds > 0.0 ? static_cast<double>(report->bytes) / report->seconds : 0.0;
  const std::string head =
      report->draft_head_bytes == 0
          ? ""
          : "a draft head of " + show_bytes(static_cast<double>(report->draft_head_bytes)) + ", ";
  std::fprintf(stderr, "%s: %llu experts, %llu dense tensors, %s%s in %.1f s (%s/s)\n",
               options.destination.c_str(), static_cast<unsigned long long>(report->experts),
               static_cast<unsigned long long>(report->dense_tensors), head.c_str(),
               show_bytes(static_cast<double>(report->bytes)).c_str(), report->seconds,
               show_bytes(rate).c_str());
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, int& exit_code) {
  CLI::App* sub = app.add_subcommand("convert", "Lay a Hugging Face checkpoint out for streaming");
  const auto options = std::make_shared<model::ConvertOptions>();
  sub->add_option("SRC", options->source, "The Hugging Face folder")->required();
  sub->add_option("DST", options->destination, "The model folder to make")->required();
  const auto experts = std::make_shared<std::string>("native"),
             dense = std::make_shared<std::string>("native");
  sub->add_option(
         "--experts", *experts,
         "native: the publisher's numbers as stored; bf16, int8, int4: rounded (8.5 and 4.5 bits a weight)")
      ->check(CLI::IsMember({"native", "bf16", "int8", "int4"}))
      ->capture_default_str();
  sub->add_option("--dense", *dense, "The same for attention, embedding, head and dense MLPs")
      ->check(CLI::IsMember({"native", "bf16", "int8"}))
      ->capture_default_str();
  sub->add_flag("!--no-draft-head", options->draft_head,
                "Leave out the layer that predicts the token after the next, which drafts for this model");
  sub->add_flag("--force", options->force, "Replace DST if it is a WISP model folder");
  sub->callback([options, experts, dense, &exit_code] {
    options->target = {kernels::format_named(*experts),
                       kernels::format_named(*dense)};  // "native" names none
    exit_code = run(*options);
  });
}

}  // namespace wisp::cli
