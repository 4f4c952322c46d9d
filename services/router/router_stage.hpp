#pragma once
#include <memory>

#include "base/result.hpp"
#include "service/stage.hpp"

namespace wisp::router {

/// Makes the router of this context. Errors: kCorrupt where the journal cannot be continued.
Result<std::unique_ptr<service::Stage>> make_router(service::StageContext& ctx);

}  // namespace wisp::router
