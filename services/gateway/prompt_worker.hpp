#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "services/gateway/openai_api.hpp"
#include "services/gateway/prompt.hpp"

namespace wisp::gateway {

/// Makes prompts one after the other on a thread of its own: a template may take seconds and a long text a
/// good part of one, and nobody else's tokens wait for that. All calls come from the stage's thread.
class PromptWorker {
 public:
  struct Made {
    std::uint64_t ticket = 0;
    ApiResult<std::vector<std::uint32_t>> ids;
    std::uint64_t helper_restarts = 0;  ///< since the last one
  };

  /// `on_made` is called on the worker's thread whenever take() has something new. `maker` is used by that
  /// thread alone from here on, but for bytes(). Throws std::system_error where no thread can be had.
  PromptWorker(PromptMaker& maker, std::function<void()> on_made);
  /// Waits for the prompt that is being made.
  ~PromptWorker();
  PromptWorker(const PromptWorker&) = delete;
  PromptWorker& operator=(const PromptWorker&) = delete;

  /// Puts a prompt at the end of the queue. Returns its ticket, never 0.
  std::uint64_t ask(std::shared_ptr<const ApiRequest> request);
  /// Takes a prompt out of the queue. One that is being made or is made comes out of take() all the same.
  void forget(std::uint64_t ticket);
  bool has_made() const;
  std::optional<Made> take();

 private:
  struct Asked {
    std::uint64_t ticket;
    std::shared_ptr<const ApiRequest> request;
  };
  void work();
  ApiResult<std::vector<std::uint32_t>> make(const ApiRequest& request);

  PromptMaker& maker_;
  std::function<void()> on_made_;
  mutable std::mutex mutex_;  ///< of what follows
  std::condition_variable wake_;
  std::deque<Asked> asked_;
  std::deque<Made> made_;
  std::uint64_t next_ticket_ = 1;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace wisp::gateway
