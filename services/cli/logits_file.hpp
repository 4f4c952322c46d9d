#pragma once
#include <string>
#include <vector>

#include "base/fd.hpp"
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

/// The folder of `wisp serve --logits`, absolute and made where it is missing: compute writes a file into it
/// for each request that asks. It has to be empty and is locked, since requests of every run have the same
/// numbers. `read`: as above. Errors: kInvalid for what is no empty folder, or lies in one of the model's;
/// kUnavailable where another server has it; kIo where it cannot be made or read.
struct LogitsFolder {
  std::string path;
  Fd lock;  ///< no other server takes the folder while it is open (flock)
};
Result<LogitsFolder> logits_folder(const std::string& folder, const std::vector<std::string>& read);

}  // namespace wisp::cli
