#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "services/cli/sse.hpp"

namespace wisp::cli {

/// A descriptor to look at while waiting for the gateway.
struct Watch {
  std::function<int()> fd;         ///< asked before each wait; -1 = nothing to look at (any more)
  std::function<bool()> readable;  ///< called when it is; false gives the request up
};

/// A streamed POST to the gateway's Unix socket.
struct StreamRequest {
  std::string socket;
  std::string target;  ///< "/v1/chat/completions"
  std::string body;    ///< JSON; repeated byte for byte when the stream is taken up again
  std::vector<std::pair<std::string, std::string>> headers;
};

struct StreamHandlers {
  std::function<void(const std::string& data)> event;  ///< each event once, "[DONE]" excepted
  std::function<void(std::string_view text)> comment;
};

/// The world around a stream.
struct StreamWorld {
  /// Asked now and then: an Error once nobody would restart the gateway any more.
  std::function<Status()> check = [] { return Status{}; };
  std::vector<Watch> watches;
};

struct StreamEnd {
  bool interrupted = false;   ///< a watch gave it up
  std::string request;        ///< the gateway's id of the request
  std::uint32_t resumes = 0;  ///< how often the connection broke and was taken up again
};

/// Posts the request and reads its events to the end. A broken connection is taken up again with
/// Last-Event-ID, as long as `check` says so: the gateway may die as often as it likes. Errors: the gateway's
/// own (its message), kUnavailable where nobody answers any more.
Result<StreamEnd> stream(const StreamRequest& request, const StreamHandlers& handlers,
                         const StreamWorld& world);

/// Connects to a Unix socket. Errors: kUnavailable, with the path.
Result<Fd> connect_unix(const std::string& path, int type);

}  // namespace wisp::cli
