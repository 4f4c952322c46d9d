#include "service/log.hpp"

#include <capnp/message.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <vector>

#include "proto/codec.hpp"

namespace wisp::service {

namespace {

/// Engine time in seconds, as the deadlines of the product count it.
class EngineTime final : public spdlog::custom_flag_formatter {
 public:
  explicit EngineTime(const shm::Life* life) : life_(life) {}
  void format(const spdlog::details::log_msg&, const std::tm&, spdlog::memory_buf_t& dest) override {
    const std::uint64_t now = life_ != nullptr ? shm::engine_now(*life_) : shm::monotonic_now();
    const std::string text = fmt::format("{}.{:06}", now / 1000000000ULL, now % 1000000000ULL / 1000);
    dest.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<EngineTime>(life_);
  }

 private:
  const shm::Life* life_;
};

}  // namespace

void set_up_log(const std::string& run_dir, const std::string& program, std::uint32_t epoch,
                const std::string& level, const shm::Life* life) {
  auto to_stderr = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  std::vector<spdlog::sink_ptr> sinks{to_stderr};
  std::string failure;
  try {
    const std::string path = fmt::format("{}/log/{}.{}.log", run_dir, program, epoch);
    if (!run_dir.empty()) {
      sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
      to_stderr->set_level(spdlog::level::warn);
    }
  } catch (const spdlog::spdlog_ex& e) {
    failure = e.what();
  }
  auto logger = std::make_shared<spdlog::logger>(program, sinks.begin(), sinks.end());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<EngineTime>('*', life);
  formatter->set_pattern(fmt::format("%Y-%m-%dT%H:%M:%S.%e %* {} e{} %l: %v", program, epoch));
  logger->set_formatter(std::move(formatter));
  // A stage dies without a farewell: what is not flushed is lost.
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
  set_log_level(level);
  if (!failure.empty()) spdlog::warn("no log file: {}", failure);
}

void set_log_level(const std::string& level) {
  const auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    spdlog::set_level(spdlog::level::info);
    spdlog::warn("log level '{}' is none of trace, debug, info, warn, error: taken as info", level);
    return;
  }
  spdlog::set_level(parsed);
}

void send_failure(int control, shm::StageId stage, const std::string& why) {
  capnp::MallocMessageBuilder message;
  auto failed = message.initRoot<proto::ToLauncher>().initFailed();
  failed.setStage(shm::index(stage));
  failed.setWhy(why.substr(0, 4096));
  (void)proto::send_packet(control, message);
}

}  // namespace wisp::service
