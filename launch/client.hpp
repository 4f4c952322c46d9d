#pragma once
#include <capnp/message.h>

#include <functional>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "proto/codec.hpp"

namespace wisp::launch {

/// A connection to the launcher of a live run. One request, one answer.
class Client {
 public:
  /// Errors: kUnavailable (nobody answers there), kInvalid (path too long).
  static Result<Client> connect(const std::string& run_dir);

  /// An answer and the descriptors that came with it, in the order of its `descriptors` names.
  struct Answer {
    bool ok = false;
    std::string text;
    plan::RunPlan plan;
    std::uint16_t port = 0;
    std::string unix_socket;
    std::string gdb_script;
    std::vector<std::uint32_t> pids;  ///< by StageId
    std::vector<std::string> names;
    std::vector<Fd> descriptors;

    /// The descriptor of that name, or -1.
    int descriptor(const std::string& name) const;
  };
  /// Fills a request by `build`, sends it with `descriptors` and waits for the answer. An answer that says no
  /// is an Error of kUnavailable with its text. Errors: kIo, kUnavailable (the launcher went away).
  Result<Answer> call(const std::function<void(proto::LaunchRequest::Builder)>& build,
                      const std::vector<int>& descriptors = {});
  /// Waits until the launcher has gone.
  void wait_for_end();

 private:
  Fd socket_;
};

}  // namespace wisp::launch
