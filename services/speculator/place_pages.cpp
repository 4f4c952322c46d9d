#include "services/speculator/place_pages.hpp"

#include <algorithm>

#include "wisp/kernels/canon.hpp"

namespace wisp::speculator {

using kernels::kPageTokens;

PlacePages::PlacePages(const plan::DraftPlan& sizes)
    : places_(sizes.places), page_ids_(std::size_t{sizes.kv_pages} * kPageTokens) {
  const std::uint32_t longest = (sizes.ctx + kPageTokens - 1) / kPageTokens;
  for (Place& p : places_) p.pages.reserve(longest);
  free_.reserve(sizes.kv_pages);
  for (std::uint32_t page = sizes.kv_pages; page-- > 0;) free_.push_back(page);
}

std::uint32_t PlacePages::ask(std::uint32_t place, std::span<const std::uint32_t> ids) {
  Place& p = places_[place];
  p.asked = ++calls_;
  return p.rows = common(p, ids);
}

std::uint32_t PlacePages::common(const Place& p, std::span<const std::uint32_t> ids) const {
  const std::size_t most = std::min<std::size_t>(p.rows, ids.size());
  for (std::size_t at = 0; at < most; at += kPageTokens) {
    const std::span<const std::uint32_t> given =
        ids.subspan(at, std::min<std::size_t>(kPageTokens, most - at));
    const std::uint32_t* kept = &page_ids_[std::size_t{p.pages[at / kPageTokens]} * kPageTokens];
    const auto differs = std::mismatch(given.begin(), given.end(), kept).first;
    if (differs != given.end()) return static_cast<std::uint32_t>(at + (differs - given.begin()));
  }
  return static_cast<std::uint32_t>(most);
}

void PlacePages::cut(std::uint32_t place, std::uint32_t rows) {
  places_[place].rows = std::min(places_[place].rows, rows);
}

bool PlacePages::hold(std::uint32_t place, std::uint32_t positions) {
  Place& p = places_[place];
  const std::size_t pages = (std::size_t{positions} + kPageTokens - 1) / kPageTokens;
  if (p.pages.size() > pages) let_go(p, pages);
  while (p.pages.size() < pages) {
    if (free_.empty() && !take_back_a_place(p)) return false;
    p.pages.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void PlacePages::add(std::uint32_t place, std::span<const std::uint32_t> ids) {
  Place& p = places_[place];
  for (const std::uint32_t id : ids) {
    page_ids_[std::size_t{p.pages[p.rows / kPageTokens]} * kPageTokens + p.rows % kPageTokens] = id;
    ++p.rows;
  }
}

bool PlacePages::take_back_a_place(const Place& but) {
  Place* least = nullptr;
  for (Place& p : places_)
    if (&p != &but && !p.pages.empty() && (least == nullptr || p.asked < least->asked)) least = &p;
  if (least == nullptr) return false;
  let_go(*least, 0);
  return true;
}

void PlacePages::let_go(Place& p, std::size_t pages) {
  for (; p.pages.size() > pages; p.pages.pop_back()) free_.push_back(p.pages.back());
  p.rows = std::min(p.rows, static_cast<std::uint32_t>(pages * kPageTokens));
}

}  // namespace wisp::speculator
