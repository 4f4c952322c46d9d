#include "services/cli/output_path.hpp"

#include <algorithm>
#include <filesystem>

namespace wisp::cli {

namespace fs = std::filesystem;

namespace {

bool lies_in(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

/// Whether a file of the folder is this one: a link of either kind.
bool is_one_of(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code other;
    if (fs::equivalent(it->path(), path, other)) return true;
  }
  return false;
}

}  // namespace

Status spares(const std::string& shown, const std::string& path, const std::vector<std::string>& read) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  for (const std::string& name : read) {
    const fs::path folder = fs::weakly_canonical(name, error);
    if (error) continue;
    if (lies_in(path, folder) || (there && is_one_of(path, folder)))
      return invalid(shown + ": is a file of " + name + ", which the model is read from; name one elsewhere");
  }
  return {};
}

Result<std::string> output_path(const std::string& option, const std::string& file,
                                const std::vector<std::string>& read) {
  std::error_code error;
  const fs::path absolute = fs::absolute(file, error);
  if (error) return io_error(option + " " + file + ": " + error.message());
  fs::path path = fs::weakly_canonical(absolute, error);
  if (error) path = absolute;  // what it names is said by whoever opens it
  if (fs::is_directory(path, error))
    return invalid(option + " " + file + ": is a folder and no regular file; name a file");
  WISP_TRY(spares(option + " " + file, path.string(), read));
  return path.string();
}

}  // namespace wisp::cli
