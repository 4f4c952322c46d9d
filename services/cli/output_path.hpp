#pragma once
#include <string>
#include <vector>

#include "base/result.hpp"

namespace wisp::cli {

/// The absolute path, links followed, of a file that `option` shall write. Touches nothing. Errors: kInvalid
/// where it is a folder, or lies in one of `read` (folders of the model) or is a file of theirs by another
/// name.
Result<std::string> output_path(const std::string& option, const std::string& file,
                                const std::vector<std::string>& read);

/// Whether `path`, absolute, lies outside of `read` and is none of their files by another name; `shown`: what
/// the user gave. Errors: kInvalid.
Status spares(const std::string& shown, const std::string& path, const std::vector<std::string>& read);

}  // namespace wisp::cli
