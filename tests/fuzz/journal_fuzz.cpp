#include <cstdint>
#include <cstring>
#include <memory>

#include "services/router/batch_plan.hpp"
#include "services/router/journal_writer.hpp"

/// A router attaches to a journal whose record bytes are hostile (a memory that a bad death left behind, or a
/// file): it must take up valid records only, and plan steps that stay inside its regions.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace wisp;
  constexpr std::uint32_t kRecords = 2, kCapacity = 64, kPages = 8;
  static const std::size_t bytes = shm::journal_size(kRecords, kCapacity);
  const auto memory = std::make_unique<std::uint64_t[]>(bytes / 8);
  shm::init_journal(memory.get(), kRecords, kCapacity, 1, 1);
  auto* journal = reinterpret_cast<shm::Journal*>(memory.get());
  if (size < 1) return 0;
  // Starts from a valid journal, so that mutations get past the checksum now and then.
  router::JournalWriter first;
  first.attach(journal, kPages, 1);
  shm::RequestParams p;
  p.prompt_tokens = 5;
  p.max_tokens = 20;
  const std::uint32_t prompt[5] = {1, 2, 3, 4, 5};
  first.open(0, 7, p, prompt, 1);
  first.admit(0, std::vector<std::uint32_t>{3, 1});
  first.commit_token(0, 9, shm::Finish::kNone, 1);
  // Input: triples (offset16, byte) laid over both records, then optionally a right checksum.
  const bool mend = (data[0] & 1) != 0;
  auto* records = reinterpret_cast<std::uint8_t*>(journal->record(0));
  const std::size_t span = 2 * journal->stride;
  for (std::size_t i = 1; i + 2 < size; i += 3) {
    const std::size_t at = (std::size_t{data[i]} | std::size_t{data[i + 1]} << 8) % span;
    records[at] = data[i + 2];
  }
  if (mend) {
    shm::JournalRecord* r = journal->record(0);
    shm::CommitWord c = shm::CommitWord::unpack(r->commit.load());
    if (std::uint64_t{r->params.prompt_tokens} + c.length <= kCapacity) {
      c.crc = shm::journal_crc(r, c.length);
      r->commit.store(c.pack());
    }
  }
  router::JournalWriter next;
  next.attach(journal, kPages, 2);
  for (std::uint32_t i = 0; i < kRecords; ++i)
    if (next.in_use(i) && !shm::journal_record_valid(journal, journal->record(i), kPages)) __builtin_trap();
  const auto rows = router::plan_rows(next, 16);
  for (const auto& r : rows)
    if (r.count == 0 || r.start + r.count > next.known(r.record) || next.known(r.record) > kCapacity ||
        (r.start + r.count + 15) / 16 > next.pages(r.record).size())
      __builtin_trap();
  (void)router::encode_step(next, rows, 0, 2);
  (void)router::free_pages(next, kPages);
  return 0;
}
