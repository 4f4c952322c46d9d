#pragma once
#include <memory>

#include "base/result.hpp"
#include "service/stage.hpp"

namespace wisp::compute {

/// Makes the compute worker of this context: reads the manifest, builds tables and scratch. Errors: those of
/// load_manifest, and kInvalid where the regions do not fit the model.
Result<std::unique_ptr<service::Stage>> make_compute(service::StageContext& ctx);

}  // namespace wisp::compute
