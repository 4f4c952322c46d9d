#pragma once
#include "shm/stages.hpp"

/// Descriptors that a stage inherits at exec, at fixed numbers; one that a stage may not have is not open
/// there. A region's descriptor is read-only in every process but its writer's.
namespace wisp::service::fds {

inline constexpr int kControl = 64;   ///< SOCK_SEQPACKET to the launcher: one Cap'n Proto message a packet
inline constexpr int kReady = 65;     ///< pipe: one byte per stage (its StageId) when it is ready
inline constexpr int kLifeline = 66;  ///< pipe: end of file when the launcher is gone
inline constexpr int kLife = 67;
inline constexpr int kSlab = 68;
inline constexpr int kDense = 69;
inline constexpr int kSlabDir = 70;
inline constexpr int kKv = 71;
inline constexpr int kJournal = 72;
inline constexpr int kTombstone = 73;   ///< loader: write end of its epoch's tombstone pipe
inline constexpr int kLogitsDir = 74;   ///< compute: directory for --logits
inline constexpr int kListenTcp = 75;   ///< gateway: listening socket, held by the launcher across restarts
inline constexpr int kListenUnix = 76;  ///< gateway: the same for `wisp run` and `wisp chat`
inline constexpr int kDeskBase = 80;    ///< + StageId
inline constexpr int kBellBase = 90;    ///< + StageId
constexpr int desk(shm::StageId s) {
  return kDeskBase + static_cast<int>(shm::index(s));
}
constexpr int bell(shm::StageId s) {
  return kBellBase + static_cast<int>(shm::index(s));
}

}  // namespace wisp::service::fds
