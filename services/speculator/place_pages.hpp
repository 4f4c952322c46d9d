#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "plan/draft_plan.hpp"

namespace wisp::speculator {

/// The KV rows that a draft keeps of each place, beside the id that each was computed from. What of a place
/// stands is the longest common beginning with the ids that it is asked about, so that a rejected guess, a
/// new life and another request need no message, and a wrong one can do no harm. Pages come from one pool;
/// where it is empty the place that was asked about least recently gives up all of its own. Allocates nothing
/// after the constructor.
class PlacePages {
 public:
  explicit PlacePages(const plan::DraftPlan& sizes);

  /// `place` is asked about now, with these ids: forgets the rows that do not stand for their beginning, and
  /// returns how many do.
  std::uint32_t ask(std::uint32_t place, std::span<const std::uint32_t> ids);
  /// Rows of `place` that stand.
  std::uint32_t rows(std::uint32_t place) const { return places_[place].rows; }
  /// No more than `rows` of them stand.
  void cut(std::uint32_t place, std::uint32_t rows);
  /// Exactly the pages that `positions` need. False where the pool has not as many.
  bool hold(std::uint32_t place, std::uint32_t positions);
  std::span<const std::uint32_t> pages(std::uint32_t place) const { return places_[place].pages; }
  /// Rows of these ids lie in the pages now, behind those that stand.
  void add(std::uint32_t place, std::span<const std::uint32_t> ids);
  void forget(std::uint32_t place) { let_go(places_[place], 0); }

 private:
  struct Place {
    std::vector<std::uint32_t> pages;  ///< room for a whole context is reserved
    std::uint32_t rows = 0;            ///< KV rows that stand
    std::uint64_t asked = 0;           ///< when it was last asked about, in calls
  };
  std::uint32_t common(const Place& p, std::span<const std::uint32_t> ids) const;
  bool take_back_a_place(const Place& but);
  void let_go(Place& p, std::size_t pages);

  std::vector<Place> places_;
  std::vector<std::uint32_t> free_;      ///< pages of no place
  std::vector<std::uint32_t> page_ids_;  ///< [pages, 16] the ids of their rows
  std::uint64_t calls_ = 0;
};

}  // namespace wisp::speculator
