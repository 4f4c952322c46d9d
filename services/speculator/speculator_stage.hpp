#pragma once
#include <memory>

#include "base/result.hpp"
#include "service/stage.hpp"

namespace wisp::speculator {

/// Makes the speculator of this context. Errors: those of a draft model, of a draft head
/// and of a script that cannot be read; kInvalid where kSourceVariable names no source.
Result<std::unique_ptr<service::Stage>> make_speculator(service::StageContext& ctx);

}  // namespace wisp::speculator
