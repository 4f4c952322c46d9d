#pragma once
#include <cstdint>
#include <string>

#include "base/fd.hpp"
#include "base/result.hpp"

namespace wisp::launch {

/// The one thing of a run that has a name: <base>/<run>, mode 0700, with `lock` (held = alive), `control`,
/// `http.sock` and `log/`. Removed with this object; what a killed launcher left is removed by the next one.
class RunDir {
 public:
  /// Removes dead runs of this user, then makes the directory of run `run_id`. Errors: kIo, kInvalid (the
  /// base directory belongs to somebody else).
  static Result<RunDir> create(std::uint64_t run_id);

  RunDir() = default;
  RunDir(RunDir&& other) noexcept;
  RunDir& operator=(RunDir&& other) noexcept;
  RunDir(const RunDir&) = delete;
  RunDir& operator=(const RunDir&) = delete;
  ~RunDir() { remove(); }

  const std::string& path() const { return path_; }
  std::string control() const { return path_ + "/control"; }
  std::string http_socket() const { return path_ + "/http.sock"; }
  /// Removes the directory and everything in it.
  void remove();

 private:
  std::string path_;
  Fd lock_;
};

/// A listening TCP socket. Port 0 = any free one. Errors: kUnavailable where the port is taken; kInvalid,
/// kIo.
struct TcpListener {
  Fd socket;
  std::uint16_t port = 0;
};
Result<TcpListener> listen_tcp(const std::string& host, std::int32_t port);

/// A listening Unix socket of `type` at `path`, mode 0600. Errors: kInvalid (path too long), kIo.
Result<Fd> listen_unix(const std::string& path, int type);

}  // namespace wisp::launch
