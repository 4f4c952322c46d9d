#include "services/gateway/text/bpe.hpp"

#include <algorithm>
#include <bit>

#include "base/check.hpp"

namespace wisp::text {
namespace {
constexpr std::uint32_t kGone = 0xFFFFFFFE;

bool later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.order > b.order;
}
}  // namespace

void Bpe::reserve(std::size_t count) {
  table_.assign(std::bit_ceil(2 * count + 2), Entry{});
}

std::size_t Bpe::slot_of(std::uint32_t left, std::uint32_t right) const {
  std::uint64_t key = (std::uint64_t{left} << 32) | right;
  key *= 0x9E3779B97F4A7C15ULL;
  key ^= key >> 29;
  std::size_t slot = static_cast<std::size_t>(key) & (table_.size() - 1);
  while (table_[slot].left != kNone && (table_[slot].left != left || table_[slot].right != right)) {
    slot = (slot + 1) & (table_.size() - 1);
  }
  return slot;
}

const Bpe::Entry* Bpe::find(std::uint32_t left, std::uint32_t right) const {
  const Entry& entry = table_[slot_of(left, right)];
  return entry.left == kNone ? nullptr : &entry;
}

void Bpe::add_merge(std::uint32_t left, std::uint32_t right, std::uint32_t rank, std::uint32_t merged) {
  table_[slot_of(left, right)] = {left, right, rank, merged};
}

void Bpe::encode(std::string_view piece, BpeScratch& scratch, std::vector<std::uint32_t>& out) const {
  scratch.initial.clear();
  for (const char c : piece)
    if (const std::uint32_t id = byte_ids_[static_cast<std::uint8_t>(c)]; id != kNone)
      scratch.initial.push_back(id);
  merge(scratch, out);
}

void Bpe::merge(BpeScratch& scratch, std::vector<std::uint32_t>& out) const {
  WISP_CHECK(scratch.initial.size() < (std::size_t{1} << 31) && !table_.empty());
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const auto count = static_cast<std::uint32_t>(scratch.initial.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols.push_back({scratch.initial[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1});
  }
  const auto candidate = [&](std::uint32_t at, std::uint32_t after) {
    const Entry* entry = find(symbols[at].id, symbols[after].id);
    if (entry == nullptr) return false;
    heap.push_back({(std::uint64_t{entry->rank} << 32) | at, entry->left, entry->right});
    return true;
  };
  for (std::uint32_t i = 0; i + 1 < count; ++i) candidate(i, i + 1);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeScratch::Candidate top = heap.back();
    heap.pop_back();
    const auto at = static_cast<std::uint32_t>(top.order);
    BpeScratch::Symbol& symbol = symbols[at];
    // Candidates are not removed when a neighbour merges first; one that no longer describes its place is
    // stale.
    if (symbol.next >= kGone || symbol.id != top.left || symbols[symbol.next].id != top.right) continue;
    const std::uint32_t eaten = symbol.next;
    symbol.id = find(top.left, top.right)->merged;
    symbol.next = symbols[eaten].next;
    symbols[eaten].next = kGone;
    if (symbol.next != kNone) {
      symbols[symbol.next].previous = at;
      if (candidate(at, symbol.next)) std::push_heap(heap.begin(), heap.end(), later);
    }
    if (symbol.previous != kNone && candidate(symbol.previous, at))
      std::push_heap(heap.begin(), heap.end(), later);
  }
  for (std::uint32_t at = 0; at < count; at = symbols[at].next) out.push_back(symbols[at].id);
}

}  // namespace wisp::text
