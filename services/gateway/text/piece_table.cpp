#include "services/gateway/text/piece_table.hpp"

#include "base/check.hpp"

namespace wisp::text {

void PieceTable::add(std::string_view bytes, std::uint32_t id) {
  WISP_CHECK(!bytes.empty() && id != kNone);
  if (2 * (used_ + 1) > slots_.size()) {
    std::vector<Slot> before(slots_.size() * 2);
    before.swap(slots_);
    for (const Slot& old : before) {
      if (old.id == kNone) continue;
      // All keys differ, so the next free slot is the right one.
      std::size_t slot = static_cast<std::size_t>(mix(old.key + old.size)) & (slots_.size() - 1);
      while (slots_[slot].id != kNone) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = old;
    }
  }
  const std::uint64_t key = key_of(bytes);
  Slot& slot = slots_[slot_of(bytes, key)];
  if (slot.id != kNone) return;
  slot = {key, id, static_cast<std::uint32_t>(bytes.size()), static_cast<std::uint32_t>(keys_.size())};
  if (bytes.size() > 8) keys_.append(bytes);
  ++used_;
}

}  // namespace wisp::text
