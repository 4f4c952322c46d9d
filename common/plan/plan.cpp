#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "plan/budget.hpp"
#include "plan/cpus.hpp"
#include "plan/draft_plan.hpp"
#include "plan/memory.hpp"
#include "plan/traffic.hpp"
#include "ring/messages.hpp"
#include "shm/journal.hpp"
#include "wisp/kernels/canon.hpp"

namespace wisp::plan {

namespace {

constexpr std::uint64_t kMiB = 1024 * 1024;
constexpr std::uint32_t kDefaultCtx = 8192;
/// Above this an arena's 32-bit offsets would no longer hold a prompt.
constexpr std::uint32_t kMaxCtx = 1u << 22;
constexpr std::uint32_t kMaxParallel = 256;
constexpr std::uint32_t kMaxThreads = 1024;
constexpr std::uint32_t kLargestChunk = 512;
constexpr std::uint32_t kSmallestChunk = 16;
/// Of experts read ahead, and the part of the slots that they may take.
constexpr std::uint64_t kPrefetchBytes = 4 * kMiB;
constexpr std::uint32_t kPrefetchShare = 32;

Error out_of_range(const std::string& option, std::uint64_t got, std::uint64_t low, std::uint64_t high,
                   const std::string& why = "") {
  return invalid(option + " " + std::to_string(got) + " is out of range: " + std::to_string(low) + " to " +
                 std::to_string(high) + why);
}

/// FNV-1a over everything that decides the bits of an answer: names a numerics profile, secures nothing.
std::uint64_t hash_profile(const RunPlan& p, std::uint64_t model_hash) {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  const auto mix = [&](std::uint64_t byte) { h = (h ^ (byte & 0xff)) * 0x100000001b3ULL; };
  for (int i = 0; i < 32; i += 8) mix(std::uint64_t{kernels::kCanonVersion} >> i);
  for (char c : p.profile) mix(static_cast<unsigned char>(c));
  mix(static_cast<std::uint64_t>(p.kv_format));
  mix(p.naive_prefill ? 1 : 0);
  for (int i = 0; i < 64; i += 8) mix(model_hash >> i);
  return h;
}

Status check_options(const model::Manifest& m, const RunOptions& o) {
  const std::uint32_t longest = std::min(m.spec.max_positions, kMaxCtx);
  if (longest == 0) return invalid("model " + m.name + " has no positions (max_position_embeddings is 0)");
  if (o.ctx > longest) return out_of_range("--ctx", o.ctx, 1, longest, " for this model");
  if (o.parallel == 0 || o.parallel > kMaxParallel)
    return out_of_range("--parallel", o.parallel, 1, kMaxParallel);
  if (o.threads > kMaxThreads) return out_of_range("--threads", o.threads, 1, kMaxThreads);
  if (o.logprobs > 1 + shm::kMostTopLogprobs)
    return out_of_range("--logprobs", o.logprobs - 1, 0, shm::kMostTopLogprobs);
  if (o.kv != name_of(kernels::KvFormat::kF32) && o.kv != name_of(kernels::KvFormat::kBf16))
    return invalid("--kv " + o.kv + " is unknown: f32 or bf16");
  if (o.profile != "auto" && o.profile != "exact" && o.profile != "fast")
    return invalid("--profile " + o.profile + " is unknown: auto, exact or fast");
  if (o.prefill != "absorbed" && o.prefill != "naive")
    return invalid("--prefill " + o.prefill + " is unknown: absorbed or naive");
  if (o.prefill == "naive" && !m.spec.attention.is_latent())
    return invalid("--prefill naive is a form of latent attention, which " + m.name +
                   " does not have; leave it out");
  if (o.io != "auto" && o.io != "uring" && o.io != "pread" && o.io != "ghost")
    return invalid("--io " + o.io + " is unknown: auto, uring or pread");
  const bool number =
      o.speculate.size() == 1 && o.fixed_drafts() >= 1 && o.fixed_drafts() <= ring::kMostDrafted;
  if (o.speculate != "off" && o.speculate != "auto" && !number)
    return invalid("--speculate " + o.speculate + " is unknown: off, auto, or 1 to " +
                   std::to_string(ring::kMostDrafted) + " tokens ahead");
  return {};
}

/// Everything but slots, chunk and the byte terms.
RunPlan lay_out(const model::Manifest& m, const RunOptions& o) {
  const model::ModelSpec& s = m.spec;
  RunPlan p;
  p.options = o;
  p.model_name = m.name;
  p.layers = static_cast<std::uint32_t>(s.layers.size());
  p.experts_per_layer = s.router.experts;
  p.expert_extents = s.expert_count();
  p.top_k = s.router.top_k;
  p.vocab = s.vocab;
  p.stride = s.expert.stride;
  p.dense_bytes = m.dense_bytes;
  p.ctx = o.ctx != 0 ? o.ctx : std::min(s.max_positions, kDefaultCtx);
  p.kv_pages = (p.ctx + kernels::kPageTokens - 1) / kernels::kPageTokens;
  if (o.kv == name_of(kernels::KvFormat::kBf16)) p.kv_format = kernels::KvFormat::kBf16;
  p.naive_prefill = o.prefill == "naive";
  p.kv_page_bytes = s.kv_page_bytes(p.kv_format);
  p.parallel = o.parallel;
  p.records = std::max<std::uint32_t>(16, 4 * o.parallel);
  p.threads = o.threads != 0 ? o.threads : usable_cores();
  p.profile = o.profile == "auto" ? m.profile : o.profile;
  p.profile_reason = o.profile == "auto" ? profile_reason(m) : "asked for";
  p.profile_hash = hash_profile(p, m.model_hash);
  return p;
}

/// What the draft model takes of the budget.
Status lay_out_draft_in(RunPlan& p, const model::Manifest* draft) {
  if (p.options.speculate == "off") p.options.draft.clear();
  if (p.options.draft.empty()) return {};
  WISP_CHECK(draft != nullptr);
  if (draft->spec.max_positions == 0)
    return invalid("--draft " + p.options.draft + ": model " + draft->name +
                   " has no positions (max_position_embeddings is 0)");
  p.draft_bytes = lay_out_draft(*draft, p).total();
  return {};
}

/// Whether the model's own head is to draft, if its memory is worth it.
bool wants_head(const model::Manifest& m, const RunPlan& p) {
  return !m.draft_head.empty() && p.options.speculate != "off" && p.options.draft.empty();
}

/// What it takes of the budget.
void lay_out_head_in(RunPlan& p, const model::Manifest& m) {
  constexpr std::uint64_t kBf16 = 2;
  p.hidden_page_bytes = kBf16 * kernels::kPageTokens * m.spec.hidden;
  p.kv_page_bytes += p.hidden_page_bytes;
  p.head_bytes = lay_out_draft_head(m, p, false).total();
}

/// A plan of one model with two dials: how many slots, how long a chunk.
class Layout {
 public:
  Layout(RunPlan base, const model::ModelSpec& spec) : plan_(std::move(base)), spec_(spec) {}

  std::uint64_t total(std::uint32_t slots, std::uint32_t chunk) { return with(slots, chunk).total(); }
  RunPlan& with(std::uint32_t slots, std::uint32_t chunk) {
    plan_.slots = slots;
    plan_.prompt_chunk = chunk;
    fill_terms(plan_, spec_);
    return plan_;
  }
  /// Most slots in [low, high] that fit; `low` is known to.
  std::uint32_t most_slots(std::uint32_t low, std::uint32_t high, std::uint32_t chunk, std::uint64_t budget) {
    while (low < high) {
      const std::uint32_t middle = low + (high - low + 1) / 2;
      if (total(middle, chunk) <= budget)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  RunPlan take() { return std::move(plan_); }

 private:
  RunPlan plan_;
  const model::ModelSpec& spec_;
};

struct Range {
  std::uint32_t low;
  std::uint32_t high;
};

/// How many slots may be had: from what one layer needs to every expert of the model, or what --experts-ram
/// says.
Result<Range> slot_range(const RunPlan& p) {
  const std::uint32_t least = std::min(p.expert_extents, std::max<std::uint32_t>(2, 2 * p.top_k));
  if (p.options.experts_ram == 0 || p.expert_extents == 0) return Range{least, p.expert_extents};
  const std::uint64_t wanted = std::min<std::uint64_t>(p.options.experts_ram / p.stride, p.expert_extents);
  if (wanted < least) {
    const std::uint64_t need = std::uint64_t{least} * p.stride;
    return exhausted("--experts-ram " + format_size(p.options.experts_ram) +
                     " is too small: " + p.model_name + " needs at least " + std::to_string(least) +
                     " slots of " + format_size(p.stride) + " (--experts-ram " +
                     std::to_string((need + 1023) / 1024) + "K)");
  }
  return Range{static_cast<std::uint32_t>(wanted), static_cast<std::uint32_t>(wanted)};
}

Range chunk_range(const RunPlan& p) {
  if (p.options.prompt_chunk != 0) {
    const std::uint32_t asked = std::min(p.options.prompt_chunk, p.ctx);
    return {asked, asked};
  }
  return {std::min(kSmallestChunk, p.ctx), std::min(kLargestChunk, p.ctx)};
}

/// "61.3 MiB (--ram 62M)": both figures rounded up, so that either one works.
std::string as_ram_option(std::uint64_t bytes) {
  const double unit =
      static_cast<double>(bytes) >= 1024.0 * static_cast<double>(kMiB) ? 1024.0 * kMiB : 1.0 * kMiB;
  char text[80];
  std::snprintf(text, sizeof text, "%.1f %s (--ram %lluM)",
                std::ceil(static_cast<double>(bytes) / unit * 10.0) / 10.0, unit > 1.0 * kMiB ? "GiB" : "MiB",
                static_cast<unsigned long long>((bytes + kMiB - 1) / kMiB));
  return text;
}

/// The options without whose numbers the least that a run needs shrinks most, as the end of a sentence.
std::string ways_to_less(const model::Manifest& m, const RunPlan& p, std::uint64_t minimum) {
  constexpr std::uint32_t kShortCtx = 512;
  constexpr std::uint64_t kWorthNaming = 8;  // an eighth of all
  struct Way {
    const char* words;
    RunOptions options;
  };
  std::vector<Way> ways(5, {"", p.options});
  ways[0].words = "a shorter --ctx";
  ways[0].options.ctx = std::min(p.ctx, kShortCtx);
  ways[1].words = "a smaller --parallel";
  ways[1].options.parallel = 1;
  ways[2].words = "a smaller --threads";
  ways[2].options.threads = std::min(p.threads, usable_cores());
  ways[3].words = "a shorter --prompt-chunk";
  ways[3].options.prompt_chunk = 0;
  ways[4].words = "leaving out --logprobs";
  ways[4].options.logprobs = 0;
  std::vector<std::pair<std::uint64_t, const char*>> saved;
  for (const Way& w : ways) {
    RunPlan other = lay_out(m, w.options);
    other.draft_bytes = p.draft_bytes;
    const auto slots = slot_range(other);
    if (!slots.ok()) continue;
    const std::uint32_t chunk = chunk_range(other).low;
    const std::uint64_t needs = Layout(std::move(other), m.spec).total(slots->low, chunk);
    if (needs < minimum) saved.emplace_back(minimum - needs, w.words);
  }
  if (saved.empty()) return "";
  std::stable_sort(saved.begin(), saved.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = std::string("; ") + saved[0].second;
  for (std::size_t i = 1; i < saved.size(); ++i)
    if (saved[i].first >= minimum / kWorthNaming) text += std::string(" or ") + saved[i].second;
  return text + " needs less";
}

Error too_small(const RunPlan& p, std::uint64_t available, std::uint64_t needed, const std::string& ways) {
  std::string text = p.options.ram != 0 ? "--ram " + format_size(p.options.ram) + " is too small: "
                                        : "too little memory: " + format_size(available) +
                                              " are free here, 70 % of which may be used: ";
  text += p.model_name + " needs at least " + as_ram_option(needed) + " with --ctx " + std::to_string(p.ctx) +
          ", --parallel " + std::to_string(p.parallel) + " and --threads " + std::to_string(p.threads) + ways;
  if (p.draft_bytes != 0)
    text +=
        ", and " + format_size(p.draft_bytes) + " are the draft's: leave --draft out, or give a smaller one";
  return exhausted(std::move(text));
}

/// As many as a drive may fill between the reads of two layers, and few enough that the cache does not miss
/// them.
std::uint32_t prefetch_slots(const RunPlan& p) {
  if (!p.options.prefetch || p.slots >= p.expert_extents) return 0;
  const auto useful = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(kPrefetchBytes / p.stride, 2, 8));
  return std::min(useful, p.slots / kPrefetchShare);
}

/// Holds what was asked for against the cgroups around this process: what it may take in all, and what others
/// have left. This process is in its groups already, and in the plan; what the kernel keeps for it is in the
/// reserve.
Status check_group(const RunPlan& p, const MemoryHere& memory) {
  if (p.options.ram == 0 || memory.group_limit == MemoryHere::kNoLimit) return {};
  const std::uint64_t counted = command_bytes() + p.reserve_bytes;
  const std::uint64_t most = std::min(memory.group_limit, memory.group_room + counted);
  if (p.total() <= most) return {};
  std::string text = "--ram " + format_size(p.options.ram) + ": this plan takes " + format_size(p.total()) +
                     ", and the memory cgroup around it has " + format_size(memory.group_room) + " free of " +
                     format_size(memory.group_limit) + "; ";
  if (most / kMiB * kMiB >= p.minimum_ram)
    text += "give --ram " + std::to_string(most / kMiB) + "M or less, or ";
  return exhausted(text + "raise the group's limit (memory.max, memory.limit_in_bytes); " + p.model_name +
                   " needs at least " + as_ram_option(p.minimum_ram));
}

/// The chunk with which a request reads least. A chunk reads each expert at most once however long it is, so
/// a long one saves reads; but its buffers take the place of slots, which save them in decoding.
std::uint32_t choose_chunk(Layout& layout, const Range& slots, const Range& chunks, std::uint64_t budget) {
  std::uint32_t best = chunks.low;
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t chunk = chunks.high;; chunk = std::max(chunk / 2, chunks.low)) {
    if (layout.total(slots.low, chunk) <= budget) {
      const std::uint32_t most = layout.most_slots(slots.low, slots.high, chunk, budget);
      const double bytes = expected_traffic(layout.with(most, chunk)).request();
      if (bytes < least) {
        least = bytes;
        best = chunk;
      }
    }
    if (chunk == chunks.low) return best;
  }
}

/// The plan of `base`, with as many slots and as long a chunk as the budget has room for.
Result<RunPlan> fill(const RunPlan& base, const model::Manifest& m, const MemoryHere& memory) {
  WISP_ASSIGN(const Range slots, slot_range(base));
  const Range chunks = chunk_range(base);
  const std::uint64_t asked = base.options.ram;

  Layout layout(base, m.spec);
  const std::uint64_t minimum = layout.total(slots.low, chunks.low);
  const std::uint64_t useful = layout.total(slots.high, chunks.high);
  const std::uint64_t available = memory.available;
  const std::uint64_t share = available != 0 ? available / 10 * 7 : useful;
  const std::uint64_t budget = asked != 0 ? asked : std::min(share, useful);
  if (budget < minimum) return too_small(base, available, minimum, ways_to_less(m, base, minimum));

  const std::uint32_t chunk = choose_chunk(layout, slots, chunks, budget);
  const std::uint32_t most = layout.most_slots(slots.low, slots.high, chunk, budget);
  layout.with(most, chunk);
  RunPlan plan = layout.take();
  plan.prefetch_slots = prefetch_slots(plan);
  plan.ram_budget = budget;
  plan.minimum_ram = minimum;
  WISP_TRY(check_group(plan, memory));
  // Regions and drafts are taken at once at the start; more than there is would end in the kernel's
  // out-of-memory killer.
  const std::uint64_t at_once = region_bytes(plan) + plan.draft_bytes + plan.head_bytes;
  if (available != 0 && at_once > available)
    return exhausted("this plan takes " + format_size(at_once) + " at once, but only " +
                     format_size(available) + " of memory are free here; give a smaller --ram (at least " +
                     std::to_string((minimum + kMiB - 1) / kMiB) + "M)");
  return plan;
}

/// A draft spares no bytes from the drive: the experts of its rows are read all the same. So a head earns its
/// memory only where few experts are read at all; its own are a small part of the model's there. Slots that a
/// shorter chunk of prompts has freed are none that it has left.
bool worth_its_memory(const RunPlan& with, const RunPlan& without) {
  constexpr std::uint64_t kShare = 16;
  return with.slots == with.expert_extents ||
         (with.slots * kShare >= without.slots * (kShare - 1) && with.prompt_chunk == without.prompt_chunk);
}

}  // namespace

std::uint32_t RunOptions::fixed_drafts() const {
  std::uint32_t number = 0;
  std::from_chars(speculate.data(), speculate.data() + speculate.size(), number);
  return number;
}

Result<RunPlan> make_plan(const model::Manifest& m, const RunOptions& options, const MemoryHere& memory,
                          const model::Manifest* draft) {
  WISP_TRY(check_options(m, options));
  RunPlan base = lay_out(m, options);
  // A recording is of what plain decoding chooses, touch by touch.
  if (!options.trace.empty()) base.options.speculate = "off";
  WISP_TRY(lay_out_draft_in(base, draft));
  auto plain = fill(base, m, memory);
  if (!plain.ok() || !wants_head(m, base)) return plain;

  RunPlan headed = base;
  lay_out_head_in(headed, m);
  auto with = fill(headed, m, memory);
  const bool asked = base.options.fixed_drafts() > 0;
  if (with.ok() && (asked || worth_its_memory(*with, *plain))) {
    with->minimum_ram = plain->minimum_ram;  // below its own it gives way
    return with;
  }
  plain->head_left = headed.head_bytes + headed.hidden_bytes();
  plain->head_fits = with.ok();
  return plain;
}

}  // namespace wisp::plan
