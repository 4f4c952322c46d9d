#include "services/gateway/prompt_worker.hpp"

#include <signal.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

namespace wisp::gateway {

PromptWorker::PromptWorker(PromptMaker& maker, std::function<void()> on_made)
    : maker_(maker), on_made_(std::move(on_made)) {
  // Signals belong to the stage's thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { work(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

PromptWorker::~PromptWorker() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::uint64_t PromptWorker::ask(std::shared_ptr<const ApiRequest> request) {
  std::uint64_t ticket = 0;
  {
    const std::scoped_lock lock(mutex_);
    ticket = next_ticket_++;
    asked_.push_back({ticket, std::move(request)});
  }
  wake_.notify_one();
  return ticket;
}

void PromptWorker::forget(std::uint64_t ticket) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(asked_, [ticket](const Asked& a) { return a.ticket == ticket; });
}

bool PromptWorker::has_made() const {
  const std::scoped_lock lock(mutex_);
  return !made_.empty();
}

std::optional<PromptWorker::Made> PromptWorker::take() {
  const std::scoped_lock lock(mutex_);
  if (made_.empty()) return std::nullopt;
  Made first = std::move(made_.front());
  made_.pop_front();
  return first;
}

void PromptWorker::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || !asked_.empty(); });
    if (ending_) return;
    const Asked asked = std::move(asked_.front());
    asked_.pop_front();
    lock.unlock();
    const std::uint64_t before = maker_.helper_restarts();
    Made made{asked.ticket, make(*asked.request), 0};
    made.helper_restarts = maker_.helper_restarts() - before;
    lock.lock();
    made_.push_back(std::move(made));
    on_made_();
  }
}

/// Libraries may throw; nothing a client sent may end this process.
ApiResult<std::vector<std::uint32_t>> PromptWorker::make(const ApiRequest& request) {
  try {
    return maker_.ids_of(request);
  } catch (const std::exception& e) {
    spdlog::error("a prompt: {}", e.what());
    return ApiError{500, std::string("the gateway failed: ") + e.what(), "", "", 0};
  }
}

}  // namespace wisp::gateway
