#include "services/cli/size_flag.hpp"

#include "plan/run_plan.hpp"

namespace wisp::cli {

CLI::Validator size_flag() {
  return CLI::Validator(
      [](std::string& text) {
        const auto bytes = plan::parse_size(text);
        if (!bytes.ok()) return bytes.error().text;
        return std::string(*bytes == 0 ? "must be larger than 0" : "");
      },
      "SIZE");
}

}  // namespace wisp::cli
