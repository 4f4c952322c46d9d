#include "services/speculator/model_files.hpp"

#include <fcntl.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>

#include "base/fd.hpp"
#include "model/safetensors.hpp"

namespace wisp::speculator {

namespace {

Result<Fd> open_file(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return io_error(path + ": " + std::strerror(errno));
  return fd;
}

void drop_cached(const Fd& fd) {
  static_cast<void>(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED));
}

Status read(const Fd& fd, std::uint64_t offset, std::byte* to, std::uint64_t bytes, const std::string& path) {
  return model::read_exactly(fd.get(), offset, {reinterpret_cast<std::uint8_t*>(to), bytes}, path);
}

Error damaged(const std::string& path, const std::string& what) {
  return corrupt(path + ": " + what +
                 " does not match its checksum; check with `wisp verify` and convert the model again");
}

}  // namespace

Status read_dense(const std::string& folder, const model::Manifest& m, std::byte* to) {
  const std::string path = folder + "/" + m.dense_file;
  WISP_ASSIGN(const Fd fd, open_file(path));
  WISP_TRY(read(fd, m.dense_file_offset, to, m.dense_bytes, path));
  drop_cached(fd);
  for (const auto& [name, t] : m.dense)
    if (XXH3_64bits(to + t.offset, t.bytes) != t.checksum) return damaged(path, "tensor " + name);
  return {};
}

Status read_tensors(const std::string& folder, const model::Manifest& m, const model::Manifest& wanted,
                    std::byte* to) {
  const std::string path = folder + "/" + m.dense_file;
  WISP_ASSIGN(const Fd fd, open_file(path));
  for (const auto& [name, t] : wanted.dense) {
    WISP_TRY(read(fd, m.dense_file_offset + m.dense.at(name).offset, to + t.offset, t.bytes, path));
    if (XXH3_64bits(to + t.offset, t.bytes) != t.checksum) return damaged(path, "tensor " + name);
  }
  drop_cached(fd);
  return {};
}

Status read_experts(const std::string& folder, const model::Manifest& m, std::byte* to) {
  const std::uint64_t payload = m.spec.expert.payload;
  for (const model::LayerExperts& layer : m.experts) {
    if (layer.file.empty()) continue;
    const std::string path = folder + "/" + layer.file;
    WISP_ASSIGN(const Fd fd, open_file(path));
    for (std::size_t e = 0; e < layer.extents.size(); ++e, to += m.spec.expert.stride) {
      WISP_TRY(read(fd, layer.extents[e].offset, to, payload, path));
      if (XXH3_64bits(to, payload) != layer.extents[e].checksum)
        return damaged(path, "expert " + std::to_string(e));
    }
    drop_cached(fd);
  }
  return {};
}

}  // namespace wisp::speculator
