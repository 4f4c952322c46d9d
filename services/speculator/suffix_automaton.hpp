#pragma once
#include <cstdint>
#include <vector>

namespace wisp::speculator {

/// The suffix automaton of a text that grows (Blumer et al. 1985): one state for each set of substrings that
/// end at the same places, at most two a token. Finds, with each token, the longest suffix of the text that
/// stands in it once before; constant time a token, amortised.
class SuffixAutomaton {
 public:
  SuffixAutomaton() { clear(); }

  /// Forgets the text. Addresses are set aside for one of `most` tokens, memory as it grows.
  void begin(std::uint32_t most);
  /// Forgets the text and gives the memory back.
  void release();
  void append(std::uint32_t token);
  std::uint32_t size() const { return size_; }

  /// The longest suffix that stands in the text before.
  struct Match {
    std::uint32_t length = 0;  ///< 0: none
    std::uint32_t end = 0;     ///< number of the token that follows it there; below size()
  };
  Match match() const { return match_; }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct State {
    std::uint32_t length;
    std::uint32_t link;
    std::uint32_t seen;   ///< a place where it ended: the last in which it was the longest, or the first
    std::uint32_t edges;  ///< first of its list
  };
  struct Edge {
    std::uint32_t state;  ///< from
    std::uint32_t token;
    std::uint32_t to;
    std::uint32_t next;  ///< of the same state
  };
  void clear();
  std::uint32_t add_state(std::uint32_t length, std::uint32_t link, std::uint32_t seen);
  std::uint32_t find(std::uint32_t state, std::uint32_t token) const;
  void add_edge(std::uint32_t state, std::uint32_t token, std::uint32_t to);
  std::size_t bucket(std::uint32_t state, std::uint32_t token) const;
  void grow();

  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<std::uint32_t> table_;  ///< edge + 1 by (state, token), open addressing; a power of two long
  std::uint32_t last_ = 0;
  std::uint32_t size_ = 0;
  Match match_;
};

}  // namespace wisp::speculator
