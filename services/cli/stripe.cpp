#include "services/cli/stripe.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/stripes.hpp"
#include "services/cli/model_progress.hpp"

namespace wisp::cli {
namespace {

struct StripeFlags {
  std::string model;
  std::vector<std::string> to, at;
  std::vector<double> shares;
  bool drop = false;
};

void show(const std::string& folder, const model::Manifest& m, const std::vector<model::Stripe>& stripes) {
  if (stripes.empty()) {
    std::printf("%s is read alone\n", folder.c_str());
    return;
  }
  const auto line = [&](std::uint64_t bytes, const std::string& where) {
    std::printf("%10s of each expert, %5.1f %%: %s\n", show_bytes(static_cast<double>(bytes)).c_str(),
                100.0 * static_cast<double>(bytes) / static_cast<double>(m.spec.expert.stride),
                where.c_str());
  };
  line(stripes.front().begin, folder);
  for (const model::Stripe& s : stripes) line(s.bytes(), s.folder);
}

/// Names the folders that the model was read with and is not any more: nothing of ours knows them from here
/// on.
void show_left(const std::vector<std::string>& before, const std::vector<model::Stripe>& now) {
  for (const std::string& old : before)
    if (std::ranges::none_of(now, [&](const model::Stripe& s) { return s.folder == old; }))
      std::printf("%s is not read any more and may be removed\n", old.c_str());
}

Status run(const StripeFlags& f) {
  WISP_ASSIGN(const model::Manifest m, model::load_manifest(f.model));
  // What cannot be read names nothing, and is no reason not to go on.
  const auto before = model::stripe_folders(f.model);
  if (f.drop) {
    WISP_TRY(model::drop_stripes(f.model));
  } else if (!f.to.empty()) {
    ByteProgress progress("dividing");
    WISP_TRY(model::make_stripes(f.model, m, f.to, f.shares, std::ref(progress)));
  } else if (!f.at.empty()) {
    WISP_TRY(model::move_stripes(f.model, m, f.at));
  }
  WISP_ASSIGN(const auto stripes, model::load_stripes(f.model, m));
  show(f.model, m, stripes);
  // Stripes that have moved are the same ones.
  if (before.ok() && f.at.empty()) show_left(*before, stripes);
  return {};
}

}  // namespace

void add_stripe(CLI::App& app, int& exit_code) {
  CLI::App* sub = app.add_subcommand("stripe", "Divide the experts of a model over several drives");
  const auto f = std::make_shared<StripeFlags>();
  sub->add_option("MODEL", f->model, "The model folder, on one of the drives; it stays whole")->required();
  auto* const to = sub->add_option("--to", f->to, "Folders to make, one on each further drive");
  auto* const shares =
      sub->add_option("--shares", f->shares,
                      "How much of each expert a drive gives, such as 3,1: the model folder's drive first "
                      "(default: equal; give them as the drives are fast)");
  shares->delimiter(',')->needs(to);
  auto* const at = sub->add_option("--at", f->at, "The stripes lie in these folders now");
  auto* const drop = sub->add_flag("--drop", f->drop, "Read the model folder alone from now on");
  to->excludes(at)->excludes(drop);
  at->excludes(drop);
  sub->footer(
      "Without an option: says how the model is read. `wisp run` and the others then read all drives at "
      "once.");
  sub->callback([f, &exit_code] {
    const Status done = run(*f);
    if (!done.ok()) std::fprintf(stderr, "wisp stripe: %s\n", done.error().text.c_str());
    exit_code = done.ok() ? 0 : 1;
  });
}

}  // namespace wisp::cli
