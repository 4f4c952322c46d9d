#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <vector>

#include "services/router/journal_writer.hpp"

namespace wisp::router::testing {

/// A journal in shared anonymous memory: children made by fork write the same bytes.
class JournalMemory {
 public:
  JournalMemory(std::uint32_t records, std::uint32_t capacity, std::uint32_t logprobs = 0)
      : size_(shm::journal_size(records, capacity, logprobs)) {
    base_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shm::init_journal(base_, records, capacity, 77, 1, logprobs);
  }
  ~JournalMemory() { ::munmap(base_, size_); }
  JournalMemory(const JournalMemory&) = delete;
  JournalMemory& operator=(const JournalMemory&) = delete;
  shm::Journal* get() const { return static_cast<shm::Journal*>(base_); }
  std::uint64_t size() const { return size_; }

 private:
  std::uint64_t size_;
  void* base_;
};

/// Opens record i with a prompt of ids 10, 11, ...
inline void open(JournalWriter& writer, std::uint32_t i, std::uint64_t request, std::uint32_t prompt,
                 std::uint32_t max_tokens) {
  shm::RequestParams p;
  p.prompt_tokens = prompt;
  p.max_tokens = max_tokens;
  std::vector<std::uint32_t> ids(prompt);
  for (std::uint32_t k = 0; k < prompt; ++k) ids[k] = k + 10;
  writer.open(i, request, p, ids, 1);
}

}  // namespace wisp::router::testing
