#pragma once
#include <sys/types.h>

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "base/result.hpp"

namespace wisp::text {

/// What one rendering may use.
struct TemplateLimits {
  int wall_ms = 10000;   ///< from sending the request to its answer; then the helper is killed
  int cpu_seconds = 8;   ///< processor time of one request; the kernel ends the helper beyond it
  int memory_mib = 256;  ///< address space of the helper, interpreter included
};

/// A Python process that renders chat templates. Started on first use; when it has died it is started again,
/// and a request it died under is sent once more. Owned by one thread: calls must not overlap, and the helper
/// ends with the *thread* that spawned it, so call from a thread that lives as long as the process.
class TemplateHelper {
 public:
  struct Options {
    std::string python;  ///< empty: the interpreter that the build fixed
    std::string script;  ///< empty: ../libexec/wisp/ of this executable's folder, then the folder itself
    TemplateLimits limits;
  };

  TemplateHelper() = default;
  explicit TemplateHelper(Options options) : options_(std::move(options)) {}
  ~TemplateHelper();
  TemplateHelper(const TemplateHelper&) = delete;
  TemplateHelper& operator=(const TemplateHelper&) = delete;

  /// Starts the helper unless it lives. kNotFound when its script is missing, kIo when it cannot be spawned.
  Status start();

  /// Renders `source` with the variables of `context` (an object). kInvalid is the template's own error,
  /// kExhausted one of the limits, kUnavailable a helper that died twice under the request.
  /// `type_error`, when given, tells whether a kInvalid came from a value of another type than the template
  /// expects.
  Result<std::string> render(const std::string& source, const nlohmann::ordered_json& context,
                             bool* type_error = nullptr);

  /// The process, or -1 while none runs; tests kill it.
  pid_t pid() const { return pid_; }

 private:
  enum class Outcome { kAnswered, kDied, kTimedOut };
  using Deadline = std::chrono::steady_clock::time_point;

  Outcome exchange(std::string_view request, std::string& reply);
  bool wait_for(short events, Deadline deadline, Outcome& failure) const;
  bool send_all(std::string_view bytes, Deadline deadline, Outcome& failure);
  bool receive(std::size_t size, std::string& bytes, Deadline deadline, Outcome& failure);
  Result<std::string> find_script() const;
  bool alive();
  int stop();

  Options options_;
  pid_t pid_ = -1;
  Fd socket_;
};

}  // namespace wisp::text
