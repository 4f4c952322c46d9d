#pragma once
#include <memory>

#include "base/result.hpp"
#include "service/stage.hpp"
#include "services/gateway/text/template_helper.hpp"

namespace wisp::gateway {

/// Makes the gateway: reads the model's tokenizer and listens on the inherited sockets. Errors: those of the
/// manifest and the tokenizer; kUnavailable where no socket was inherited.
Result<std::unique_ptr<service::Stage>> make_gateway(service::StageContext& ctx);
/// The same with another template helper, for tests.
Result<std::unique_ptr<service::Stage>> make_gateway_with(service::StageContext& ctx,
                                                          const text::TemplateHelper::Options& helper);

}  // namespace wisp::gateway
