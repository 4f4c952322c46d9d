#include "services/gateway/gateway_stage.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>

#include "services/gateway/gateway.hpp"
#include "services/gateway/http_server.hpp"

namespace wisp::gateway {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::uint64_t kTickNs = 500'000'000;

/// The gateway's loop: one io_context for sockets, doorbell, control socket and lifeline.
class GatewayStage final : public service::Stage {
 public:
  GatewayStage(service::StageContext& ctx, const text::TemplateHelper::Options& helper)
      : ctx_(ctx), work_(asio::make_work_guard(io_)), gateway_(ctx, helper), server_(io_, gateway_) {}

  Status start() {
    WISP_TRY(gateway_.load());
    int listening = 0;
    for (const int fd : {service::fds::kListenTcp, service::fds::kListenUnix}) {
      if (::fcntl(fd, F_GETFD) < 0) continue;
      WISP_TRY(server_.listen(fd));
      ++listening;
    }
    if (listening == 0) return unavailable("the gateway inherited no listening socket");
    const auto fds = ctx_.wake_fds();
    for (std::size_t i = 0; i < fds.size(); ++i) WISP_TRY(watch(i, fds[i]));
    return {};
  }

  bool poll() override {
    bool worked = guarded([this] { return io_.poll() != 0; });
    worked |= guarded([this] { return gateway_.pump(); });
    const std::uint64_t now = shm::monotonic_now();
    if (now < ticked_ns_ + kTickNs) return worked;
    ticked_ns_ = now;
    guarded([this] { return server_.tick(), true; });
    return worked;
  }

  bool has_work() override { return gateway_.has_work(); }

  void sleep(service::StageContext& ctx) override {
    if (gateway_.blocked())
      ctx.begin_park(shm::WaitFor::kRingSpace, shm::index(shm::EdgeId::kGatewayRouter));
    else
      ctx.begin_park(shm::WaitFor::kWork, 0);
    if (!has_work())
      guarded([this] { return io_.run_one_for(std::chrono::nanoseconds(gateway_.patience_ns())) != 0; });
    ctx.end_park();
  }

 private:
  /// Libraries may throw; nothing a client sent may end this process.
  template <class F>
  bool guarded(F f) {
    try {
      return f();
    } catch (const std::exception& e) {
      spdlog::error("gateway: {}", e.what());
      return true;
    }
  }

  Status watch(std::size_t i, int fd) {
    if (fd < 0) return {};
    Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return io_error("descriptor " + std::to_string(fd) + " of the stage is not open");
    error_code ec;
    wake_[i].emplace(io_);
    wake_[i]->assign(copy.get(), ec);
    if (ec) return io_error("descriptor " + std::to_string(fd) + ": " + ec.message());
    (void)copy.release();
    await(i);
    return {};
  }

  void await(std::size_t i) {
    wake_[i]->async_wait(asio::posix::stream_descriptor::wait_read, [this, i](error_code ec) {
      if (ec) return;
      if (i == 0)
        ctx_.bell(ctx_.id()).silence();
      else
        ctx_.poll_control();
      await(i);
    });
  }

  service::StageContext& ctx_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Gateway gateway_;
  HttpServer server_;
  std::array<std::optional<asio::posix::stream_descriptor>, 3> wake_;
  std::uint64_t ticked_ns_ = 0;
};

}  // namespace

Result<std::unique_ptr<service::Stage>> make_gateway(service::StageContext& ctx) {
  return make_gateway_with(ctx, {});
}

Result<std::unique_ptr<service::Stage>> make_gateway_with(service::StageContext& ctx,
                                                          const text::TemplateHelper::Options& helper) {
  auto stage = std::make_unique<GatewayStage>(ctx, helper);
  WISP_TRY(stage->start());
  return std::unique_ptr<service::Stage>(std::move(stage));
}

}  // namespace wisp::gateway
