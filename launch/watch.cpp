#include "launch/watch.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.hpp"

namespace wisp::launch {

Poller::Poller() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  WISP_CHECK(epoll_.valid());
}

void Poller::add(int fd, std::uint32_t events, Callback callback) {
  const std::uint64_t serial = next_serial_++;
  watched_[fd] = {serial, std::make_shared<Callback>(std::move(callback))};
  epoll_event e{};
  e.events = events;
  e.data.u64 = serial << 32 | static_cast<std::uint32_t>(fd);
  WISP_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &e) == 0);
}

void Poller::remove(int fd) {
  if (fd < 0 || watched_.erase(fd) == 0) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Poller::turn(int timeout_ms) {
  std::array<epoll_event, 64> events;
  int n;
  do n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  while (n < 0 && errno == EINTR);
  for (int i = 0; i < n; ++i) {
    const epoll_event& e = events[static_cast<std::size_t>(i)];
    const auto at = watched_.find(static_cast<int>(e.data.u64 & 0xffffffffu));
    // An earlier callback of this turn may have closed it, and the number may belong to another by now.
    if (at == watched_.end() || (at->second.serial & 0xffffffffu) != e.data.u64 >> 32) continue;
    const auto callback = at->second.callback;
    (*callback)(e.events);
  }
}

ProcessLook look_at(pid_t pid) {
  ProcessLook look;
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("State:")) {
      const auto at = line.find_first_not_of(" \t", 6);
      look.stopped = at != std::string::npos && (line[at] == 'T' || line[at] == 't');
    } else if (line.starts_with("TracerPid:")) {
      look.traced_by = static_cast<std::uint32_t>(std::strtoul(line.c_str() + 10, nullptr, 10));
    } else if (line.starts_with("RssAnon:")) {
      look.private_bytes = std::strtoull(line.c_str() + 8, nullptr, 10) * 1024;
    }
  }
  return look;
}

std::vector<pid_t> descendants(pid_t pid) {
  std::vector<pid_t> all;
  std::vector<pid_t> open{pid};
  while (!open.empty()) {
    const std::string tasks = "/proc/" + std::to_string(open.back()) + "/task";
    open.pop_back();
    std::error_code ignored;
    // A child is listed under the thread that started it.
    for (const auto& task : std::filesystem::directory_iterator(tasks, ignored)) {
      std::ifstream children(task.path() / "children");
      pid_t child = 0;
      while (children >> child) {
        all.push_back(child);
        open.push_back(child);
      }
    }
  }
  return all;
}

std::uint64_t private_bytes_of_tree(pid_t pid) {
  std::uint64_t sum = look_at(pid).private_bytes;
  for (pid_t child : descendants(pid)) sum += look_at(child).private_bytes;
  return sum;
}

}  // namespace wisp::launch
