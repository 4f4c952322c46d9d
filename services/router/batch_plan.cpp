#include "services/router/batch_plan.hpp"

#include <algorithm>
#include <cstring>

namespace wisp::router {

namespace {
std::vector<std::uint32_t> running_records(const JournalWriter& journal) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < journal.count(); ++i)
    if (journal.in_use(i) && !journal.finished(i) &&
        journal.at(i).admitted.load(std::memory_order_relaxed) != 0)
      out.push_back(i);
  std::sort(out.begin(), out.end(),
            [&](std::uint32_t a, std::uint32_t b) { return journal.at(a).order < journal.at(b).order; });
  return out;
}

template <class T>
void append(std::vector<std::byte>& out, const T* data, std::size_t n) {
  const auto* p = reinterpret_cast<const std::byte*>(data);
  out.insert(out.end(), p, p + n * sizeof(T));
}
}  // namespace

std::vector<PlannedRows> plan_rows(const JournalWriter& journal, std::uint32_t prompt_chunk) {
  std::vector<PlannedRows> rows;
  std::uint32_t room = prompt_chunk;
  for (const std::uint32_t i : running_records(journal)) {
    const std::uint32_t start = journal.at(i).kv_len.load(std::memory_order_relaxed);
    const std::uint32_t missing = journal.known(i) - start;
    if (missing == 1 && journal.committed(i).length > 0) {
      rows.push_back({i, start, 1, true});
      continue;
    }
    const std::uint32_t count = std::min(missing, room);
    if (count == 0) continue;
    room -= count;
    rows.push_back({i, start, count, count == missing});
  }
  return rows;
}

std::vector<std::byte> encode_step(const JournalWriter& journal, const std::vector<PlannedRows>& rows,
                                   std::uint64_t step, std::uint32_t kv_generation) {
  ring::StepHeader header{step, static_cast<std::uint32_t>(rows.size()), 0, kv_generation, 0};
  for (const PlannedRows& p : rows) header.rows += p.count;
  std::vector<std::byte> out;
  append(out, &header, 1);
  for (const PlannedRows& p : rows) {
    const shm::JournalRecord& r = journal.at(p.record);
    ring::StepRequest q;
    q.request = r.request.load(std::memory_order_relaxed);
    q.record = p.record;
    q.start = p.start;
    q.count = p.count;
    q.pages = (p.start + p.count + 15) / 16;
    q.sample = p.sample ? 1 : 0;
    q.generated = journal.committed(p.record).length;
    q.params = r.params;
    append(out, &q, 1);
    append(out, journal.ids(p.record).data() + p.start, p.count);
    append(out, journal.pages(p.record).data(), q.pages);
    if ((p.count + q.pages) % 2 != 0)
      out.resize(out.size() + sizeof(std::uint32_t));  // keeps headers 8-aligned
  }
  return out;
}

std::vector<std::uint32_t> free_pages(const JournalWriter& journal, std::uint32_t kv_pages) {
  std::vector<bool> used(kv_pages, false);
  for (std::uint32_t i = 0; i < journal.count(); ++i) {
    if (!journal.in_use(i) || journal.finished(i) ||
        journal.at(i).admitted.load(std::memory_order_relaxed) == 0)
      continue;
    for (const std::uint32_t p : journal.pages(i)) used[p] = true;
  }
  std::vector<std::uint32_t> out;
  for (std::uint32_t p = 0; p < kv_pages; ++p)
    if (!used[p]) out.push_back(p);
  return out;
}

}  // namespace wisp::router
