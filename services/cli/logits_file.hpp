#pragma once
#include <string>
#include <vector>

#include "base/result.hpp"

namespace wisp::cli {

/// `--logits FILE`: compute writes a request's rows into a folder that is handed to it; at the end the file
/// moves to its name. The folder lies beside it, so that moving copies nothing, and goes when this object
/// does.
class LogitsFile {
 public:
  LogitsFile() = default;
  /// `read`: folders that hold no rows (output_path). Errors: kInvalid for what is no regular file, or one of
  /// the model's; kIo where the folder cannot be made.
  static Result<LogitsFile> create(const std::string& file, const std::vector<std::string>& read = {});
  LogitsFile(LogitsFile&& other) noexcept;
  LogitsFile& operator=(LogitsFile&& other) noexcept;
  ~LogitsFile();

  /// Absolute path of the folder.
  const std::string& folder() const { return folder_; }
  /// Moves the rows of `request` to the file. Errors: kNotFound where there are none.
  Status keep(const std::string& request);

 private:
  std::string file_;
  std::string folder_;
};

}  // namespace wisp::cli
