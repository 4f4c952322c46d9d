#include "services/gateway/text/stop_matcher.hpp"

#include <algorithm>
#include <utility>

#include "services/gateway/text/unicode.hpp"

namespace wisp::text {
namespace {

std::vector<std::size_t> borders_of(std::string_view text) {
  std::vector<std::size_t> border(text.size() + 1, 0);
  for (std::size_t i = 1, k = 0; i < text.size(); ++i) {
    while (k > 0 && text[i] != text[k]) k = border[k];
    if (text[i] == text[k]) ++k;
    border[i + 1] = k;
  }
  return border;
}

}  // namespace

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops) {
    return invalid("stop: " + std::to_string(stops.size()) + " strings, at most " +
                   std::to_string(kMaxStops) + " are possible");
  }
  StopMatcher matcher;
  for (std::size_t i = 0; i < stops.size(); ++i) {
    const std::string where = "stop[" + std::to_string(i) + "]";
    if (stops[i].empty()) return invalid(where + ": is empty; leave it out");
    if (stops[i].size() > kMaxStopBytes) {
      return invalid(where + ": longer than " + std::to_string(kMaxStopBytes) + " bytes");
    }
    if (find_invalid_utf8(stops[i]) != std::string_view::npos) return invalid(where + ": not UTF-8");
    Automaton automaton;
    automaton.border = borders_of(stops[i]);
    automaton.text = std::move(stops[i]);
    matcher.stops_.push_back(std::move(automaton));
  }
  return matcher;
}

StopMatcher::Delta StopMatcher::push(std::string_view text) {
  Delta delta;
  if (stopped_) return delta;
  for (const char c : text) {
    held_.push_back(c);
    std::size_t longest = 0;
    for (std::size_t i = 0; i < stops_.size(); ++i) {
      Automaton& stop = stops_[i];
      while (stop.matched > 0 && stop.text[stop.matched] != c) stop.matched = stop.border[stop.matched];
      if (stop.text[stop.matched] == c) ++stop.matched;
      if (stop.matched == stop.text.size() && stop.matched > longest) {
        longest = stop.matched;
        delta.stop = i;
      }
    }
    if (longest > 0) {
      held_.resize(held_.size() - longest);
      stopped_ = true;
      break;
    }
  }
  std::size_t keep = 0;
  if (!stopped_) {
    for (const Automaton& stop : stops_) keep = std::max(keep, stop.matched);
  }
  delta.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  released_ += delta.text.size();
  return delta;
}

std::string StopMatcher::flush() {
  for (Automaton& stop : stops_) stop.matched = 0;
  released_ += held_.size();
  return std::exchange(held_, {});
}

}  // namespace wisp::text
