#pragma once
#include <memory>

#include "base/result.hpp"
#include "service/stage.hpp"

namespace wisp::loader {

/// Environment: the file in which the cache keeps what it has learned; unset or empty = it learns nothing.
inline constexpr const char* kLearnedVariable = "WISP_LEARNED";
/// Environment: the file in which the figures of drives are kept; unset or empty = drives are not probed.
inline constexpr const char* kDrivesVariable = "WISP_DRIVES";
/// Environment: "lru" = the least recently used expert goes, to compare with; else CachePolicy's own rule.
inline constexpr const char* kPolicyVariable = "WISP_CACHE_POLICY";

/// The loader of this process's epoch, as a host starts it: takes over slots, opens the model, and owns the
/// tombstone descriptor (fds::kTombstone) where there is one. Errors name the file and the way out; kIo,
/// kUnavailable and kExhausted may pass at the next start.
Result<std::unique_ptr<service::Stage>> make_loader(service::StageContext& ctx);

}  // namespace wisp::loader
