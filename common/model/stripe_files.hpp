#pragma once
#include <string>
#include <vector>

#include "model/stripes.hpp"

namespace wisp::model {

/// In a stripe's folder: what it is.
inline constexpr const char* kStripeFile = "stripe.json";
/// In the model folder: where its stripes are.
inline constexpr const char* kStripesFile = "stripes.json";

/// load_stripes() of these folders, whatever the model folder says.
Result<std::vector<Stripe>> load_stripes_of(const std::string& folder, const Manifest& m,
                                            const std::vector<std::string>& folders);

}  // namespace wisp::model
