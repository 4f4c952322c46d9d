#include "plan/budget.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "plan/traffic.hpp"
#include "ring/messages.hpp"
#include "shm/life.hpp"
#include "slab/lease.hpp"
#include "wisp/kernels/canon.hpp"
#include "wisp/kernels/naive.hpp"

namespace wisp::plan {

namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kFloat = 4;

// Private memory of each process: RssAnon of /proc/<pid>/status after a long prompt and four requests at a
// time (release build, measured: command 0.6, launcher 0.4, loader 0.5, router 0.3, speculator 0.4 MiB;
// compute and gateway without the terms that grow with model and options, which follow, 0.5 each;
// helper 10.6), rounded up for kernel stacks, socket buffers and other C libraries.
constexpr std::uint64_t kGatewayBytes = 3 * kMiB;
constexpr std::uint64_t kTemplateHelperBytes = 13 * kMiB;
constexpr std::uint64_t kRouterBytes = 2 * kMiB;
constexpr std::uint64_t kLoaderBytes = 3 * kMiB;
constexpr std::uint64_t kComputeBytes = 3 * kMiB;
constexpr std::uint64_t kSpeculatorBytes = kMiB;
constexpr std::uint64_t kLauncherBytes = 2 * kMiB;
constexpr std::uint64_t kCommandBytes = 2 * kMiB;  ///< `wisp` itself
/// One process that hosts all stages shares one C library and one allocator between them.
constexpr std::uint64_t kSoloBytes = 6 * kMiB;
/// Tokenizer tables with their file still parsed beside them: 345 bytes per entry of a vocabulary of 150,000.
constexpr std::uint64_t kBytesPerVocab = 400;
/// Look-up in prompt and answer: 2 states and 3 edges of 16 bytes, their table and its growth, the id.
constexpr std::uint64_t kLookupBytesPerToken = 140;
/// Stack pages and allocator arena of a worker thread.
constexpr std::uint64_t kBytesPerThread = 192 * kKiB;
/// Offset and checksum, as loader, compute, gateway and command hold them (15.5 each), and the loader's
/// policy and learned counts: 122 measured with 82,432 experts.
constexpr std::uint64_t kBytesPerExtent = 128;

/// What no term names: allocator slack, control packets, pipes and sockets.
constexpr std::uint64_t kReserveBytes = 4 * kMiB;
/// The kernel's tree over the pages of a memfd: 576 bytes per 64 pages, 1/455 of what it holds.
constexpr std::uint64_t kTreeShare = 400;

std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// Numbers that attention holds of a row.
std::uint64_t attention_row(const model::AttentionSpec& a) {
  const std::uint64_t heads = a.heads;
  if (!a.is_latent()) return 2 * heads * a.head_dim + 2 * std::uint64_t{a.kv_heads} * a.head_dim;
  return heads * (std::uint64_t{a.head_dim} + a.key_up_rows() + a.latent.kv_rank + a.value_up_rows()) +
         a.kv_width() + a.latent.q_rank + a.indexer.heads * (std::uint64_t{a.indexer.head_dim} + 1) +
         a.indexer.head_dim;
}

/// Numbers that attention holds of a thread: for the queries that it answers at a time their scores, entries
/// and parts of the answer; two pointers a page; with latent attention a block of latents.
std::uint64_t attention_thread(const RunPlan& p, const model::AttentionSpec& a) {
  constexpr std::uint64_t kQueries = 8;
  const std::uint64_t scores = p.ctx + std::uint64_t{17}, pointers = 4 * std::uint64_t{p.kv_pages};
  if (!a.is_latent()) {
    const std::uint64_t queries = std::max<std::uint64_t>(kQueries, a.heads / a.kv_heads);
    return pointers + queries * (scores + 2 * std::uint64_t{a.head_dim} + 1);
  }
  const std::uint64_t queries = std::max(kQueries, (a.heads + std::uint64_t{3}) / 4);
  const std::uint64_t choice = a.indexer.heads != 0 ? 3 * scores : 0;
  return pointers + choice + queries * (scores + 2 * std::uint64_t{a.kv_width()} + 1) +
         std::uint64_t{kernels::kBlockColumns} * a.latent.kv_rank;
}

/// Numbers that naive rows need beside that: keys and values of some heads over the whole context, the heads'
/// matrices, and of each thread a page of latents with its keys, and scores.
std::uint64_t naive_prefill(const RunPlan& p, const model::AttentionSpec& a) {
  if (!p.naive_prefill) return 0;
  const std::uint64_t heads = std::min(kernels::kNaiveHeads, a.heads), rank = a.latent.kv_rank;
  const std::uint64_t positions = p.kv_pages * std::uint64_t{kernels::kPageTokens};
  const std::uint64_t rows = kernels::kTileRows * (std::uint64_t{kernels::tiles_of(a.latent.nope)} +
                                                   kernels::tiles_of(a.latent.value));
  const std::uint64_t thread =
      kernels::kPageTokens * (rank + a.latent.nope) + std::max<std::uint64_t>(rank, a.latent.nope);
  return heads * (positions * (a.head_dim + std::uint64_t{a.latent.value}) + rows * rank) +
         p.threads * thread;
}

/// Bytes of the gateway for a byte of a body: its JSON, the rendered text, its pieces, and as much in
/// waiting.
constexpr std::uint64_t kBytesPerBodyByte = 80;
/// The gateway's, for a token in an answer's log-probabilities: its text, its bytes and a number, and the
/// copies of an answer that does not stream while it is put together and sent. The answers that run share
/// `ctx` positions; what has ended and is not yet read by its client comes on top, as all such bodies do.
constexpr std::uint64_t kBytesPerToldToken = 3 * 80;

std::uint64_t private_memory(const RunPlan& p, const model::ModelSpec& s) {
  std::uint64_t bytes = kLauncherBytes + kCommandBytes;
  bytes += p.options.topology == "solo"
               ? kSoloBytes
               : kGatewayBytes + kRouterBytes + kLoaderBytes + kComputeBytes + kSpeculatorBytes;
  if (p.options.speculate != "off") bytes += kLookupBytesPerToken * p.ctx;
  bytes += kBytesPerBodyByte * max_body_bytes(p.ctx);
  bytes += kBytesPerToldToken * p.options.logprobs * p.ctx;
  bytes += 2 * ring::most_told_bytes(p.parallel, p.options.logprobs);  // compute's, and its message
  if (p.options.text) bytes += kTemplateHelperBytes + std::uint64_t{s.vocab} * kBytesPerVocab;
  return bytes + std::uint64_t{p.threads} * kBytesPerThread +
         std::uint64_t{p.expert_extents} * kBytesPerExtent;
}

/// Desks, slot directory, `life` and the header pages of the other regions.
std::uint64_t desks(const RunPlan& p) {
  std::uint64_t bytes = 2 * kPage + round_up(sizeof(shm::Life), kPage);
  for (shm::StageId s : shm::kRunningStages) bytes += shm::desk_size(s, desk_plan(p, s));
  return bytes + slab::slab_dir_size(p.slots, p.layers, p.experts_per_layer);
}

/// Page tables: 8 bytes per 4 KiB page in each process that maps it. One process: one mapping of each region.
std::uint64_t page_tables(const RunPlan& p) {
  const bool solo = p.options.topology == "solo";
  const std::uint64_t weights = p.slab_bytes() + p.dense_bytes;  // loader, compute
  const std::uint64_t head = p.head_bytes != 0 && !solo ? p.dense_bytes + p.kv_bytes() : 0;  // speculator
  const std::uint64_t shared = p.journal_bytes + p.desks_bytes;  // all five stages at most
  const std::uint64_t mapped =
      solo ? weights + shared + p.kv_bytes() : 2 * weights + 5 * shared + p.kv_bytes();
  return round_up((mapped + head + p.draft_bytes + p.head_bytes) / (kPage / 8), kPage);
}

/// What a journal with room for log-probabilities says of it.
std::string told_in_journal(const RunPlan& p) {
  if (p.options.logprobs == 0) return "";
  return ", with log-probabilities of each token and the " + std::to_string(p.options.logprobs - 1) +
         " likeliest (--logprobs)";
}

/// The last component of a path.
std::string file_name(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

std::uint64_t max_body_bytes(std::uint32_t ctx) {
  return std::min(64 * kKiB + std::uint64_t{32} * ctx, 16 * kMiB);
}

std::uint64_t command_bytes() {
  return kCommandBytes;
}

std::uint64_t region_bytes(const RunPlan& p) {
  return p.dense_bytes + p.slab_bytes() + p.kv_bytes() + p.journal_bytes + p.desks_bytes;
}

std::uint64_t scratch_bytes(const RunPlan& p, const model::ModelSpec& s) {
  const model::AttentionSpec& a = s.attention;
  const std::uint64_t rows = std::uint64_t{p.prompt_chunk} + p.parallel;
  std::uint64_t dense_width = 0;
  for (const model::LayerSpec& layer : s.layers)
    dense_width = std::max<std::uint64_t>(dense_width, layer.moe ? s.shared.width : layer.dense_width);
  const std::uint64_t width = std::max<std::uint64_t>(s.moe_width, dense_width);
  const std::uint64_t hidden = s.hidden;
  // Residual, normalised, attention and MLP output, gathered rows of an expert; the products of all chosen
  // experts stay until they are summed in rank order.
  const std::uint64_t per_row = hidden * (5 + std::uint64_t{s.router.top_k} + (s.shared.width != 0 ? 1 : 0)) +
                                attention_row(a) + s.ordered_width + 3 * width +
                                (s.draft_head ? 2 * hidden : 0) + 2 * std::uint64_t{s.router.experts} +
                                3 * std::uint64_t{s.router.top_k};
  // Inputs in bytes, with a scale and a sum for 32 of them: of a product, and of the experts of a layer;
  // experts with an order of their own need the latter for themselves.
  const std::uint64_t in_bytes =
      s.widest_input() + std::uint64_t{s.hidden} + (s.ordered_width != 0 ? s.hidden : 0) + 64;
  const std::uint64_t bytes = p.profile == "fast" ? rows * (in_bytes + in_bytes / 32 * 8) : 0;
  const std::uint64_t scores = std::uint64_t{p.threads} * attention_thread(p, a);
  // The sampler's masses and order beside them, and penalised ones with the times of each token.
  const std::uint64_t drafts = p.options.speculate == "off" ? 0 : ring::kMostDraftedInStep;
  const std::uint64_t told = p.options.logprobs != 0 ? 1 : 0;  // masses again
  const std::uint64_t logits = (p.parallel + drafts + 4 + told) * s.vocab;
  const std::uint64_t rotation = std::uint64_t{p.ctx} * a.rope.width;
  const std::uint64_t text = 2 * std::uint64_t{p.ctx};  // its ids, and each once
  // A bit for each position that a row may choose.
  const std::uint64_t choices = a.indexer.heads != 0 ? rows * (p.ctx / 32 + std::uint64_t{2}) : 0;
  return round_up(
      (choices + rows * per_row + scores + naive_prefill(p, a) + logits + rotation + text) * kFloat + bytes,
      kPage);
}

void fill_terms(RunPlan& p, const model::ModelSpec& spec) {
  p.scratch_bytes = scratch_bytes(p, spec);
  p.journal_bytes = shm::journal_size(p.records, p.ctx, p.options.logprobs);
  p.desks_bytes = desks(p);
  p.page_table_bytes = page_tables(p);
  p.process_bytes = private_memory(p, spec);
  p.reserve_bytes = round_up(kReserveBytes + region_bytes(p) / kTreeShare, kPage);
}

shm::DeskPlan desk_plan(const RunPlan& p, shm::StageId stage) {
  using shm::EdgeId;
  shm::DeskPlan d;
  const auto arena = [&](EdgeId e) -> std::uint64_t& { return d.arena_bytes[shm::index(e)]; };
  switch (stage) {
    case shm::StageId::kGateway:
      // Two prompts of full length.
      arena(EdgeId::kGatewayRouter) = std::max(kMiB, std::uint64_t{p.ctx} * 4 * 2 + 64 * kKiB);
      break;
    case shm::StageId::kRouter: {
      // Four steps in flight. All sequences of a step share the pool, so their page lists do too.
      const std::uint64_t rows = std::uint64_t{p.prompt_chunk} + p.parallel;
      const std::uint64_t step = sizeof(ring::StepHeader) + p.parallel * sizeof(ring::StepRequest) +
                                 rows * 4 + (std::uint64_t{p.kv_pages} + p.parallel) * 4;
      arena(EdgeId::kRouterCompute) = 4 * round_up(step, 64) + 64 * kKiB;
      d.extra_bytes = sizeof(shm::RouterBoard) + std::uint64_t{8} * p.records;
      break;
    }
    case shm::StageId::kLoader:
      arena(EdgeId::kLoaderCompute) = 256 * kKiB;
      d.extra_bytes = sizeof(shm::LoaderBoard);
      break;
    case shm::StageId::kCompute:
      arena(EdgeId::kComputeRouter) =
          256 * kKiB + 2 * round_up(ring::most_told_bytes(p.parallel, p.options.logprobs), 64);
      arena(EdgeId::kComputeLoader) = kMiB;
      // Several layers of what each row chose.
      if (!p.options.trace.empty()) {
        const std::uint64_t rows = std::uint64_t{p.prompt_chunk} + p.parallel;
        arena(EdgeId::kComputeLoader) +=
            4 * rows * (sizeof(ring::TouchRow) + p.top_k * sizeof(ring::TouchChoice));
      }
      d.extra_bytes = sizeof(slab::LeaseRow) * std::uint64_t{p.slots};
      break;
    case shm::StageId::kSpeculator:
      // As many messages as the ring has places.
      arena(EdgeId::kSpeculatorRouter) = 64 * kKiB;
      break;
  }
  return d;
}

std::string describe(const RunPlan& p) {
  struct Term {
    std::uint64_t bytes;
    std::string what;
  };
  std::vector<Term> terms{
      {p.slab_bytes(), "experts: " + std::to_string(p.slots) + " slots for " +
                           std::to_string(p.expert_extents) + " experts of " + format_size(p.stride)},
      {p.dense_bytes, p.expert_extents != 0 ? "weights beside the experts" : "weights"},
      {p.kv_bytes() - p.hidden_bytes(), "KV cache: " + std::to_string(p.ctx) + " tokens (--ctx) in " +
                                            std::string(name_of(p.kv_format)) + " (--kv)"},
      {p.scratch_bytes, "working memory: prompt in chunks of " + std::to_string(p.prompt_chunk) +
                            " (--prompt-chunk), " + (p.naive_prefill ? "naive (--prefill), " : "") +
                            std::to_string(p.threads) + " threads"},
      {p.process_bytes, "private memory of the processes"},
      {p.desks_bytes, "rings and directories"},
      {p.journal_bytes, "journal: " + std::to_string(p.records) + " requests" + told_in_journal(p)},
      {p.page_table_bytes, "page tables"},
      {p.reserve_bytes, "reserve"}};
  if (p.draft_bytes != 0)
    terms.push_back({p.draft_bytes, "draft model " + file_name(p.options.draft) + " (--draft)"});
  if (p.head_bytes != 0)
    terms.push_back({p.head_bytes + p.hidden_bytes(), "the model's draft head (--speculate)"});
  if (p.expert_extents == 0) terms.erase(terms.begin());
  std::stable_sort(terms.begin(), terms.end(),
                   [](const Term& a, const Term& b) { return a.bytes > b.bytes; });
  std::string text =
      "memory: " + format_size(p.total()) + " planned of " + format_size(p.ram_budget) + " allowed (--ram)\n";
  for (const Term& t : terms) {
    char size[32];
    std::snprintf(size, sizeof size, "%12s", format_size(t.bytes).c_str());
    text += size;
    text += "  " + t.what + "\n";
  }
  if (p.head_left != 0)
    text += "the model's draft head is left aside: its " + format_size(p.head_left) +
            (p.head_fits ? " are worth more as slots for experts (--speculate 3 takes them all the same)\n"
                         : " find no room beside the least that a run needs\n");
  if (const Traffic t = expected_traffic(p); t.request() > 0)
    text += "reads: about " + format_size(static_cast<std::uint64_t>(t.prompt)) + " for a prompt of " +
            std::to_string(kNominalPrompt) + " tokens in chunks of " + std::to_string(p.prompt_chunk) + ", " +
            format_size(static_cast<std::uint64_t>(t.token)) + " a token of an answer\n";
  return text;
}

}  // namespace wisp::plan
