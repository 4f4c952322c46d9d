#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/fd.hpp"

namespace wisp::launch {

/// One epoll loop with a callback per descriptor. Callbacks may add and remove any descriptor, their own too.
class Poller {
 public:
  using Callback = std::function<void(std::uint32_t events)>;

  Poller();
  /// Watches `fd` for `events` (EPOLLIN...). Does not own it; remove() comes before it is closed.
  void add(int fd, std::uint32_t events, Callback callback);
  void remove(int fd);
  /// Dispatches what happens within `timeout_ms`; loops on EINTR.
  void turn(int timeout_ms);

 private:
  struct Watched {
    std::uint64_t serial;
    std::shared_ptr<Callback> callback;
  };
  Fd epoll_;
  std::uint64_t next_serial_ = 1;
  std::map<int, Watched> watched_;
};

/// What /proc says of a process. A debugger that attaches is reported to no parent; it is seen here alone.
struct ProcessLook {
  bool stopped = false;             ///< state T or t
  std::uint32_t traced_by = 0;      ///< TracerPid
  std::uint64_t private_bytes = 0;  ///< RssAnon
};
/// A process that is gone looks like one that runs.
ProcessLook look_at(pid_t pid);

/// Children, grandchildren and so on, in no order.
std::vector<pid_t> descendants(pid_t pid);

/// Private memory of a process and of everything that it started.
std::uint64_t private_bytes_of_tree(pid_t pid);

}  // namespace wisp::launch
