#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace wisp::text {

/// Ids by exact bytes. Filled once, then read by any thread.
class PieceTable {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  PieceTable() : slots_(2) {}

  /// `bytes` is copied; at most 2^32 bytes in all, none empty. The first of equal ones stays.
  void add(std::string_view bytes, std::uint32_t id);

  /// The id of `bytes`, or kNone.
  std::uint32_t find(std::string_view bytes) const {
    if (bytes.empty()) return kNone;
    return slots_[slot_of(bytes, key_of(bytes))].id;
  }

 private:
  struct Slot {
    std::uint64_t key = 0;  // up to 8 bytes themselves, else their hash
    std::uint32_t id = kNone;
    std::uint32_t size = 0;
    std::uint32_t offset = 0;  // in keys_, where size > 8
  };

  static std::uint64_t load(const char* p, std::size_t n) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, n);
    return word;
  }
  static std::uint64_t mix(std::uint64_t x) {
    x *= 0x9E3779B97F4A7C15ULL;
    return x ^ (x >> 32);
  }
  static std::uint64_t key_of(std::string_view bytes) {
    const char* p = bytes.data();
    std::size_t n = bytes.size();
    if (n <= 8) return load(p, n);
    std::uint64_t key = n;
    for (; n > 8; p += 8, n -= 8) key = mix(key ^ load(p, 8));
    return mix(key ^ load(p, n));
  }
  std::size_t slot_of(std::string_view bytes, std::uint64_t key) const {
    std::size_t slot = static_cast<std::size_t>(mix(key + bytes.size())) & (slots_.size() - 1);
    while (slots_[slot].id != kNone && !equal(slots_[slot], bytes, key))
      slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }
  bool equal(const Slot& slot, std::string_view bytes, std::uint64_t key) const {
    return slot.key == key && slot.size == bytes.size() &&
           (bytes.size() <= 8 || std::memcmp(keys_.data() + slot.offset, bytes.data(), bytes.size()) == 0);
  }

  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  std::string keys_;
  std::size_t used_ = 0;
};

}  // namespace wisp::text
