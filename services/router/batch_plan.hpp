#pragma once
#include <cstdint>
#include <vector>

#include "ring/messages.hpp"
#include "services/router/journal_writer.hpp"

namespace wisp::router {

/// Rows [start, start + count) of journal record `record` in the next step.
struct PlannedRows {
  std::uint32_t record = 0;
  std::uint32_t start = 0;
  std::uint32_t count = 0;
  bool sample = false;
};

/// Chooses the rows of the next step from the admitted, unfinished records, oldest first: one row of each
/// sequence that decodes, and at most `prompt_chunk` rows of prompts. Pure.
std::vector<PlannedRows> plan_rows(const JournalWriter& journal, std::uint32_t prompt_chunk);

/// Writes the step as edge 3 carries it.
std::vector<std::byte> encode_step(const JournalWriter& journal, const std::vector<PlannedRows>& rows,
                                   std::uint64_t step, std::uint32_t kv_generation);

/// KV pages that no admitted, unfinished record names, ascending: a free list that is derived, so that none
/// can leak. A step of a record that has finished may still write them; edge 3 is first in, first out, so
/// every step that uses them anew comes later.
std::vector<std::uint32_t> free_pages(const JournalWriter& journal, std::uint32_t kv_pages);

}  // namespace wisp::router
