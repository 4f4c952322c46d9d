#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "shm/life.hpp"

namespace wisp::gateway {

/// Reads `life` for the clients: who is down, who has given up, who died and came back.
class StageWatch {
 public:
  explicit StageWatch(const shm::Life& life);

  /// Comment lines (": ...", each with its blank line) for what has changed since the last call.
  std::string changes();
  /// Why nothing can be answered any more.
  std::optional<std::string> given_up() const;
  /// Why nothing is answered now; includes given_up().
  std::optional<std::string> unready() const;

 private:
  struct Seen {
    std::uint32_t epoch = 0;
    bool down = false;  ///< its death was told, its return not
  };
  const shm::Life& life_;
  std::array<Seen, shm::kStages> seen_{};
};

}  // namespace wisp::gateway
