#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "model/manifest.hpp"
#include "shm/desk.hpp"
#include "wisp/kernels/kv_format.hpp"

namespace wisp::plan {

/// What the user asked for; 0 or empty = not said.
struct RunOptions {
  std::string model;                 ///< converted folder
  std::uint64_t ram = 0;             ///< bytes for everything
  std::uint64_t experts_ram = 0;     ///< bytes for the slab alone
  std::string profile = "auto";      ///< "exact", "fast", "auto" = the manifest's
  std::string kv = "f32";            ///< "f32", "bf16": how KV rows are kept
  std::string prefill = "absorbed";  ///< "absorbed", "naive": the form of latent attention in prompts
  std::uint32_t threads = 0;
  std::uint32_t ctx = 0;  ///< tokens of the KV pool and of the longest sequence
  std::uint32_t parallel = 4;
  std::uint32_t prompt_chunk = 0;
  std::string topology = "full";
  std::string host = "127.0.0.1";
  std::int32_t port = 8080;  ///< 0 = any free one, -1 = no TCP listener
  std::string io = "auto";   ///< auto, uring, pread, ghost (tests)
  bool check_experts = true;
  bool prefetch = true;
  std::string draft;               ///< converted folder of a draft model, an absolute path; "" = none
  std::string speculate = "auto";  ///< "off", "auto", "1" to "7": always so many tokens ahead
  std::string logits_dir;          ///< "" = none
  std::uint32_t logprobs = 0;  ///< 1 + most likeliest tokens that a request may ask for; 0: no room at all
  std::string draft_log;       ///< file for what the controller of drafts was told and said; "" = none
  std::string trace;           ///< file for a routing trace, an absolute path; "" = none
  std::string log_level = "info";
  bool text =
      true;  ///< the model has a tokenizer: its tables and the template helper need memory (planner only)

  /// The number in `speculate`; 0 where none is demanded.
  std::uint32_t fixed_drafts() const;
};

/// Sizes of everything, before anything is allocated. Pure numbers: the launcher makes regions of them
/// without knowing what a model is, and every stage gets the same copy.
struct RunPlan {
  RunOptions options;
  std::string model_name;
  std::string run_dir;  ///< filled by the launcher

  std::uint32_t layers = 0;
  std::uint32_t experts_per_layer = 0;
  std::uint32_t expert_extents = 0;
  std::uint32_t top_k = 0;
  std::uint32_t vocab = 0;
  std::uint32_t slots = 0;           ///< of the slab
  std::uint32_t prefetch_slots = 0;  ///< of those, for what is read ahead; the cache has the others
  std::uint64_t stride = 0;
  std::uint64_t dense_bytes = 0;
  std::uint32_t ctx = 0;
  std::uint32_t kv_pages = 0;
  std::uint64_t kv_page_bytes = 0;
  /// Of those, the last: rows of the model behind its last norm, [16][hidden] bf16, for its draft head; 0
  /// where that does not draft.
  std::uint64_t hidden_page_bytes = 0;
  kernels::KvFormat kv_format = kernels::KvFormat::kF32;
  bool naive_prefill = false;  ///< wisp/kernels/naive.hpp says which rows
  std::uint32_t records = 0;
  std::uint32_t parallel = 0;
  std::uint32_t prompt_chunk = 0;
  std::uint32_t threads = 0;
  std::string profile;
  std::string profile_reason;      ///< why this one, for people
  std::uint64_t profile_hash = 0;  ///< of profile, KV format, form of prompts, canonical order and weights

  // the budget, term by term (bytes)
  std::uint64_t ram_budget = 0;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t journal_bytes = 0;
  std::uint64_t desks_bytes = 0;
  std::uint64_t page_table_bytes = 0;
  std::uint64_t process_bytes = 0;  ///< private memory of all processes, measured
  std::uint64_t reserve_bytes = 0;
  std::uint64_t draft_bytes = 0;  ///< weights, KV cache and working memory of the draft model, 0 without one
  std::uint64_t head_bytes = 0;   ///< the same of the model's own draft head, 0 where it does not draft
  std::uint64_t head_left =
      0;  ///< what that and its rows would take of a model that has one, where it is left aside
  bool head_fits = false;         ///< whether it is left aside although it fits
  std::uint64_t minimum_ram = 0;  ///< smallest budget in which this model runs with these options

  std::uint32_t cache_slots() const { return slots - prefetch_slots; }
  std::uint64_t slab_bytes() const { return std::uint64_t{slots} * stride; }
  /// Of the region's pages, hidden rows included.
  std::uint64_t kv_bytes() const { return std::uint64_t{kv_pages} * kv_page_bytes; }
  std::uint64_t hidden_bytes() const { return std::uint64_t{kv_pages} * hidden_page_bytes; }
  /// Where in a KV page the hidden rows begin.
  std::uint64_t hidden_at() const { return kv_page_bytes - hidden_page_bytes; }
  std::uint64_t total() const {
    return dense_bytes + slab_bytes() + kv_bytes() + scratch_bytes + journal_bytes + desks_bytes +
           page_table_bytes + process_bytes + reserve_bytes + draft_bytes + head_bytes;
  }
};

/// Memory that the machine could give: min(MemAvailable, room in every enclosing cgroup, v1 or v2), bytes.
std::uint64_t available_memory();

/// What a plan is held against, bytes.
struct MemoryHere {
  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

  MemoryHere(std::uint64_t bytes) : available(bytes) {}  // NOLINT(google-explicit-constructor)
  std::uint64_t available;                               ///< as available_memory() gives; 0 = not known
  // Of the memory cgroups around this process. What MemAvailable lacks the kernel may still find; what a
  // group lacks ends in its out-of-memory killer.
  std::uint64_t group_limit = kNoLimit;  ///< the smallest
  std::uint64_t group_room = kNoLimit;   ///< the smallest part that is not taken, by us or others
};
MemoryHere memory_here();

/// Lays out a run of this model. Pure but for `memory` (as memory_here() gives). `draft`: the manifest of
/// options.draft, there where that is not empty; with --speculate off both are left aside. The model's own
/// draft head drafts where no other draft is asked for and its memory is worth it: every expert finds room
/// beside it, or it costs few slots; with a number in --speculate, wherever it fits. Errors: kExhausted
/// names the smallest budget that would do; kInvalid names the option.
Result<RunPlan> make_plan(const model::Manifest& m, const RunOptions& options, const MemoryHere& memory,
                          const model::Manifest* draft = nullptr);

/// The budget as printed lines, one term each, largest first.
std::string describe(const RunPlan& plan);

/// The desk of each stage for this plan.
shm::DeskPlan desk_plan(const RunPlan& plan, shm::StageId stage);

/// The longest body of an HTTP request that a context of `ctx` tokens can make use of: far more than its
/// tokens have bytes, and little enough that what it costs to read and cut up one is in the budget.
std::uint64_t max_body_bytes(std::uint32_t ctx);

/// "256M", "8G", "1.5GiB", "4096" -> bytes (powers of 1024).
Result<std::uint64_t> parse_size(const std::string& text);
/// 536870912 -> "512 MiB".
std::string format_size(std::uint64_t bytes);

}  // namespace wisp::plan
