#include "services/replay/replay.hpp"

#include <algorithm>
#include <queue>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "ring/descriptor.hpp"
#include "services/loader/cache_policy.hpp"

namespace wisp::replay {

namespace {

using trace::Access;
using trace::Touch;
using trace::Trace;

std::size_t key_count(const Trace& t) {
  return std::size_t{t.model.layers} * t.model.experts;
}
std::uint32_t key_of(const Trace& t, const Touch& touch, const Access& a) {
  return touch.layer * t.model.experts + a.expert;
}

class Default {
 public:
  Default(const Trace& t, std::uint32_t slots)
      : policy_({slots, t.model.layers, t.model.experts, std::max(1u, t.model.top_k)}) {}

  std::uint64_t take(const Trace& t, const Touch& touch) {
    set_.clear();
    for (const Access& a : t.of(touch)) set_.push_back({ring::expert_key(touch.layer, a.expert), a.rows});
    using Rows = loader::CachePolicy::Rows;
    const auto resident =
        policy_.admit(touch.layer, set_, true, touch.decode ? Rows::kDecode : Rows::kPrompt);
    std::uint64_t hits = 0;
    misses_.clear();
    for (std::size_t i = 0; i < set_.size(); ++i) {
      if (resident[i] == 0) {
        misses_.push_back(set_[i].key);
        continue;
      }
      ++hits;
      policy_.serve(set_[i].key);
    }
    for (const std::uint32_t key : misses_) {
      const auto choice = policy_.choose();
      WISP_CHECK(choice);  // nothing is held here
      if (choice->evicts) policy_.remove(choice->slot);
      policy_.insert(choice->slot, key);
      policy_.serve(key);
    }
    return hits;
  }

 private:
  loader::CachePolicy policy_;
  std::vector<loader::CachePolicy::Member> set_;
  std::vector<std::uint32_t> misses_;
};

/// Keys in a ring of links, from the marker (number `end_`) through the newest to the oldest and back.
class Lru {
 public:
  Lru(const Trace& t, std::uint32_t slots) : slots_(slots), end_(static_cast<std::uint32_t>(key_count(t))) {
    links_.assign(std::size_t{end_} + 1, {end_, end_, false});
  }

  std::uint64_t take(const Trace& t, const Touch& touch) {
    std::uint64_t hits = 0;
    misses_.clear();
    for (const Access& a : t.of(touch)) {
      const std::uint32_t key = key_of(t, touch, a);
      if (!links_[key].in) {
        misses_.push_back(key);
        continue;
      }
      ++hits;
      unlink(key);
      push(key);
    }
    // The members used just now are the newest: they go when nothing else is left, oldest first.
    for (const std::uint32_t key : misses_) {
      if (size_ == slots_) unlink(links_[end_].newer);
      push(key);
    }
    return hits;
  }

 private:
  struct Link {
    std::uint32_t older, newer;
    bool in;
  };
  void push(std::uint32_t key) {
    const std::uint32_t newest = links_[end_].older;
    links_[key] = {newest, end_, true};
    links_[newest].newer = key;
    links_[end_].older = key;
    ++size_;
  }
  void unlink(std::uint32_t key) {
    Link& l = links_[key];
    links_[l.older].newer = l.newer;
    links_[l.newer].older = l.older;
    l.in = false;
    --size_;
  }

  std::uint32_t slots_, end_, size_ = 0;
  std::vector<Link> links_;
  std::vector<std::uint32_t> misses_;
};

/// Belady, "A study of replacement algorithms for a virtual-storage computer" (1966), with touches for
/// references and the choice not to keep what was fetched.
class Belady {
 public:
  Belady(const Trace& t, std::uint32_t slots) : slots_(slots), next_(t.accesses.size()) {
    std::vector<std::uint64_t> seen(key_count(t), kNever);
    for (std::size_t n = t.touches.size(); n-- > 0;) {
      const Touch& touch = t.touches[n];
      for (std::uint64_t i = touch.first; i < touch.first + touch.count; ++i) {
        std::uint64_t& at = seen[key_of(t, touch, t.accesses[i])];
        next_[i] = at;
        at = n;
      }
    }
    use_.assign(key_count(t), kAbsent);
  }

  std::uint64_t take(const Trace& t, const Touch& touch) {
    std::uint64_t hits = 0;
    misses_.clear();
    // Hits first: their next uses have to be known before anything is compared with them.
    for (std::uint64_t i = touch.first; i < touch.first + touch.count; ++i) {
      const std::uint32_t key = key_of(t, touch, t.accesses[i]);
      if (use_[key] == kAbsent) {
        misses_.push_back(i);
        continue;
      }
      ++hits;
      keep(key, i);
    }
    for (const std::uint64_t i : misses_) {
      if (size_ < slots_) {
        ++size_;
      } else {
        // Entries of earlier uses are passed over when they come up.
        while (use_[farthest_.top().second] != farthest_.top().first) farthest_.pop();
        if (farthest_.top().first <= next_[i]) continue;
        use_[farthest_.top().second] = kAbsent;
        farthest_.pop();
      }
      keep(key_of(t, touch, t.accesses[i]), i);
    }
    return hits;
  }

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0} - 1;  // no use comes
  static constexpr std::uint64_t kAbsent = ~std::uint64_t{0};

  void keep(std::uint32_t key, std::uint64_t access) {
    use_[key] = next_[access];
    farthest_.emplace(next_[access], key);
  }

  std::uint32_t slots_, size_ = 0;
  std::vector<std::uint64_t> next_;  // [accesses] touch of the next use
  std::vector<std::uint64_t> misses_;
  std::vector<std::uint64_t> use_;  // [keys] touch of the next use of what is there
  std::priority_queue<std::pair<std::uint64_t, std::uint32_t>> farthest_;
};

template <class Cache>
Figures run(const Trace& t, std::uint32_t slots) {
  Cache cache(t, slots);
  Figures f;
  for (const Touch& touch : t.touches) {
    const std::uint64_t hits = cache.take(t, touch);
    f.accesses += touch.count;
    f.hits += hits;
    if (!touch.decode) continue;
    f.decode_accesses += touch.count;
    f.decode_hits += hits;
  }
  return f;
}

}  // namespace

Result<Policy> policy_of(std::string_view name) {
  if (name == "default") return Policy::kDefault;
  if (name == "lru") return Policy::kLru;
  if (name == "belady") return Policy::kBelady;
  return invalid("policy \"" + std::string(name) + "\" is none of default, lru, belady");
}

Figures replay(const Trace& trace, std::uint32_t slots, Policy policy) {
  WISP_CHECK(slots > 0);
  // More than there are experts are never filled.
  slots = static_cast<std::uint32_t>(std::min<std::uint64_t>(slots, key_count(trace)));
  switch (policy) {
    case Policy::kLru:
      return run<Lru>(trace, slots);
    case Policy::kBelady:
      return run<Belady>(trace, slots);
    case Policy::kDefault:
      break;
  }
  return run<Default>(trace, slots);
}

}  // namespace wisp::replay
