#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <stdexcept>

#include "harness.hpp"

/// wisp-storm: kills, stops and crash points at random places of long generations, at most six committed
/// tokens apart. Every stream must equal the undisturbed one. Prints counts by stage and crash point; none
/// may be zero.

namespace wisp::crash {
namespace {

using shm::StageId;

struct Options {
  std::uint64_t kills = 300;
  std::uint64_t seed = 1;
  std::uint32_t tokens = 400;
  std::string io = "auto";
  std::string speculate = "off";  ///< else with the bundled draft model
};

RunSettings settings_of(const Options& o) {
  RunSettings s;
  s.io = o.io;
  s.speculate = o.speculate;
  if (o.speculate != "off") s.draft = "pocket-dictionary-draft";
  return s;
}

const std::map<StageId, std::vector<const char*>>& points() {
  static const std::map<StageId, std::vector<const char*>> all{
      {StageId::kGateway, {"sse_half", "after_effect_before_head"}},
      {StageId::kRouter,
       {"after_fill", "after_seq", "before_ring", "after_effect_before_head", "token_before_commit",
        "commit_before_head"}},
      {StageId::kLoader,
       {"after_fill", "after_seq", "before_ring", "after_effect_before_head", "evicting_stored",
        "filling_stored", "cqe_before_ready", "ready_before_publish"}},
      {StageId::kCompute,
       {"after_fill", "after_seq", "before_ring", "after_effect_before_head", "lease_written", "kv_row_half",
        "sampled"}},
      {StageId::kSpeculator,
       {"after_fill", "after_seq", "before_ring", "after_effect_before_head", "question_taken",
        "drafts_unsent"}}};
  return all;
}

class Storm {
 public:
  explicit Storm(const Options& o) : o_(o), random_(o.seed) {}

  int run() {
    const std::vector<std::string> questions{"What is a dog?", "Define courage.", "What is a river?"};
    std::vector<Seen> golden;
    {
      // Of a pipeline that guesses nothing.
      Options plain = o_;
      plain.speculate = "off";
      TestRun undisturbed(settings_of(plain));
      for (const std::string& q : questions)
        golden.push_back(undisturbed.ask_and_wait(q, o_.tokens, kind_of(golden.size())));
    }
    run_.emplace(settings_of(o_));
    for (const Seen& g : golden)
      if (!g.error.empty()) return fail("the undisturbed run: " + g.error);
    std::uint64_t streams = 0;
    std::uint32_t resumes = 0;
    while (strikes_ < o_.kills || missing()) {
      const std::size_t which = random_() % questions.size();
      auto ask = run_->ask(questions[which], o_.tokens, kind_of(which));
      while (!ask->done() && (strikes_ < o_.kills || missing())) strike(*ask);
      const Seen seen = ask->wait();
      ++streams;
      resumes += seen.resumes;
      if (!(seen == golden[which])) return differ(seen, golden[which]);
    }
    report(streams, resumes);
    return 0;
  }

 private:
  static TestRun::Kind kind_of(std::size_t question) {
    return question == 0 ? TestRun::Kind::kFull : TestRun::Kind::kTold;
  }

  std::uint64_t tokens() { return run_->counter(StageId::kRouter, stats::Counter::kTokensCommitted); }

  /// A speculator that is not asked does nothing that could be struck.
  StageId stage_at(std::uint64_t n) const {
    return shm::kRunningStages[n % (o_.speculate == "off" ? 4 : shm::kRunningStages.size())];
  }

  /// Waits for one to six more tokens, then strikes a random stage in a random way.
  void strike(const TestRun::Ask& ask) {
    const std::uint64_t target = tokens() + 1 + random_() % 6;
    await("tokens between two strikes", [&] { return ask.done() || tokens() >= target; });
    if (ask.done()) return;
    const StageId s = stage_at(random_());
    const std::uint64_t kind = random_() % 10;
    if (!run_->ready(s)) return;
    const std::uint32_t before = run_->epoch(s);
    if (kind < 4) {
      run_->signal(s, SIGKILL);
      ++killed_[s];
    } else if (kind < 5) {
      const StageId other = stage_at(random_());
      run_->signal(s, SIGKILL);
      if (run_->ready(other) && other != s) {
        run_->signal(other, SIGKILL);
        ++killed_[other];
      }
      ++killed_[s];
    } else if (kind < 6) {
      // A point armed earlier may strike first: then the signal finds nobody.
      const auto died = [&] { return run_->epoch(s) > before; };
      const auto stopped = [&] { return run_->state().life().stage[shm::index(s)].stopped.load() != 0; };
      run_->signal(s, SIGSTOP);
      await("the stop to be seen", [&] { return died() || stopped(); });
      run_->signal(s, SIGCONT);
      await("the stop to be over", [&] { return died() || !stopped(); });
      if (died()) return;
      ++stopped_[s];
      ++strikes_;
      return;
    } else {
      const auto& list = points().at(s);
      const char* point = list[random_() % list.size()];
      try {
        run_->arm(s, point, 1 + static_cast<std::uint32_t>(random_() % 3));
      } catch (const std::runtime_error&) {
        // A point armed earlier struck a moment ago: the message found nobody.
        await("the stage to return",
              [&] { return ask.done() || (run_->epoch(s) > before && run_->ready(s)); });
        return;
      }
      await("the armed point to be struck", [&] { return ask.done() || run_->epoch(s) > before; });
      if (run_->epoch(s) > before) ++struck_[std::string(shm::name_of(s)) + " " + point];
    }
    await("the stage to return", [&] { return ask.done() || (run_->epoch(s) > before && run_->ready(s)); });
    ++strikes_;
  }

  bool missing() const {
    for (const auto& [s, list] : points()) {
      if (s == StageId::kSpeculator && o_.speculate == "off") continue;
      if (!killed_.contains(s) || !stopped_.contains(s)) return true;
      for (const char* p : list)
        if (!struck_.contains(std::string(shm::name_of(s)) + " " + p)) return true;
    }
    return false;
  }

  static int fail(const std::string& why) {
    std::fprintf(stderr, "storm: %s\n", why.c_str());
    return 1;
  }

  int differ(const Seen& seen, const Seen& want) {
    std::size_t i = 0;
    while (i < seen.lines.size() && i < want.lines.size() && seen.lines[i] == want.lines[i]) ++i;
    std::fprintf(stderr,
                 "storm: seed %llu, after %llu strikes a stream differs at line %zu of %zu (%zu seen) %s\n  "
                 "got  %s\n  want %s\n",
                 static_cast<unsigned long long>(o_.seed), static_cast<unsigned long long>(strikes_), i,
                 want.lines.size(), seen.lines.size(), seen.error.c_str(),
                 i < seen.lines.size() ? seen.lines[i].c_str() : "(nothing)",
                 i < want.lines.size() ? want.lines[i].c_str() : "(nothing)");
    return 1;
  }

  void report(std::uint64_t streams, std::uint32_t resumes) {
    std::printf(
        "storm: seed %llu, io %s, %llu strikes, %llu streams equal to the undisturbed ones, %u taken up "
        "again, %llu tokens\n",
        static_cast<unsigned long long>(o_.seed), o_.io.c_str(), static_cast<unsigned long long>(strikes_),
        static_cast<unsigned long long>(streams), resumes, static_cast<unsigned long long>(tokens()));
    for (const StageId s : shm::kRunningStages)
      std::printf("  %-8s killed %4llu  stopped %4llu  epochs %u\n", std::string(shm::name_of(s)).c_str(),
                  static_cast<unsigned long long>(killed_[s]), static_cast<unsigned long long>(stopped_[s]),
                  run_->epoch(s));
    for (const auto& [name, n] : struck_)
      std::printf("  %-34s %llu\n", name.c_str(), static_cast<unsigned long long>(n));
  }

  Options o_;
  std::mt19937_64 random_;
  std::optional<TestRun> run_;
  std::uint64_t strikes_ = 0;
  std::map<StageId, std::uint64_t> killed_, stopped_;
  std::map<std::string, std::uint64_t> struck_;
};

}  // namespace
}  // namespace wisp::crash

int main(int argc, char** argv) {
  wisp::crash::Options o;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = i + 1 < argc ? argv[i] : "";
    const std::uint64_t value = flag.empty() ? 0 : std::strtoull(argv[i + 1], nullptr, 10);
    if (flag == "--kills")
      o.kills = value;
    else if (flag == "--seed")
      o.seed = value;
    else if (flag == "--tokens")
      o.tokens = static_cast<std::uint32_t>(value);
    else if (flag == "--io")
      o.io = argv[i + 1];
    else if (flag == "--speculate")
      o.speculate = argv[i + 1];
    else {
      std::fprintf(stderr,
                   "usage: wisp-storm [--kills N] [--seed S] [--tokens N] [--io auto|uring|pread|ghost] "
                   "[--speculate off|auto|K]\n");
      return 2;
    }
  }
  return wisp::crash::Storm(o).run();
}
