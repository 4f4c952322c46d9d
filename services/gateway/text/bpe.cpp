#include "services/gateway/text/bpe.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

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

Bpe::Pair Bpe::find(std::uint32_t left, std::uint32_t right) const {
  return table_[slot_of(left, right)].pair;
}

void Bpe::add_merge(std::uint32_t left, std::uint32_t right, std::uint32_t rank, std::uint32_t merged) {
  table_[slot_of(left, right)] = {left, right, {rank, merged}};
}

std::vector<Bpe::Merge> Bpe::merges() const {
  std::vector<Entry> entries;
  for (const Entry& e : table_)
    if (e.left != kNone) entries.push_back(e);
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.pair.rank, a.left, a.right) < std::tie(b.pair.rank, b.left, b.right);
  });
  std::vector<Merge> out;
  out.reserve(entries.size());
  for (const Entry& e : entries) out.push_back({e.left, e.right, e.pair.merged});
  return out;
}

void Bpe::finish() {
  byte_pairs_.assign(std::size_t{256} * 256, Pair{});
  for (std::size_t first = 0; first < 256; ++first)
    for (std::size_t second = 0; second < 256; ++second)
      if (byte_ids_[first] != kNone && byte_ids_[second] != kNone)
        byte_pairs_[first * 256 + second] = find(byte_ids_[first], byte_ids_[second]);
}

void Bpe::encode(std::string_view piece, BpeScratch& scratch, std::vector<std::uint32_t>& out) const {
  std::uint32_t ids[kShort];
  Pair pairs[kShort];
  bool all = piece.size() <= kShort;
  for (std::size_t i = 0; all && i < piece.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(piece[i]);
    ids[i] = byte_ids_[byte];
    all = ids[i] != kNone;
    if (i > 0) pairs[i - 1] = byte_pairs_[static_cast<std::uint8_t>(piece[i - 1]) * std::size_t{256} + byte];
  }
  if (all) return merge_few(ids, pairs, piece.size(), out);
  scratch.initial.clear();
  for (const char c : piece)
    if (const std::uint32_t id = byte_ids_[static_cast<std::uint8_t>(c)]; id != kNone)
      scratch.initial.push_back(id);
  merge(scratch, out);
}

void Bpe::merge(BpeScratch& scratch, std::vector<std::uint32_t>& out) const {
  const std::size_t count = scratch.initial.size();
  WISP_CHECK(count < (std::size_t{1} << 31) && !table_.empty());
  if (count > kShort) return merge_many(scratch, out);
  Pair pairs[kShort];
  for (std::size_t i = 0; i + 1 < count; ++i) pairs[i] = find(scratch.initial[i], scratch.initial[i + 1]);
  merge_few(scratch.initial.data(), pairs, count, out);
}

/// `pairs[i]`: what `ids[i]` and `ids[i + 1]` merge to.
void Bpe::merge_few(std::uint32_t* ids, Pair* pairs, std::size_t count,
                    std::vector<std::uint32_t>& out) const {
  while (count > 1) {
    std::size_t best = 0;
    std::uint32_t lowest = kNone;
    for (std::size_t i = 0; i + 1 < count; ++i) {
      if (pairs[i].rank < lowest) {
        lowest = pairs[i].rank;
        best = i;
      }
    }
    if (lowest == kNone) break;
    ids[best] = pairs[best].merged;
    --count;
    std::memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof(*ids));
    std::memmove(pairs + best, pairs + best + 1, (count - best) * sizeof(*pairs));
    if (best + 1 < count) pairs[best] = find(ids[best], ids[best + 1]);
    if (best > 0) pairs[best - 1] = find(ids[best - 1], ids[best]);
  }
  out.insert(out.end(), ids, ids + count);
}

void Bpe::merge_many(BpeScratch& scratch, std::vector<std::uint32_t>& out) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const auto count = static_cast<std::uint32_t>(scratch.initial.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols.push_back({scratch.initial[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1});
  }
  const auto candidate = [&](std::uint32_t at, std::uint32_t after) {
    const std::uint32_t left = symbols[at].id, right = symbols[after].id;
    const Pair pair = find(left, right);
    if (pair.rank == kNone) return false;
    heap.push_back({(std::uint64_t{pair.rank} << 32) | at, left, right, pair.merged});
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
    symbol.id = top.merged;
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
