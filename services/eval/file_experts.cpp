#include "services/eval/file_experts.hpp"

#include <fcntl.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>

#include "model/safetensors.hpp"

namespace wisp::eval {

namespace {
constexpr std::size_t kAtOnce = 8;
}

Result<FileExperts> FileExperts::open(const std::string& folder, const model::Manifest& m) {
  FileExperts out(m);
  for (const model::LayerExperts& layer : m.experts) {
    Fd fd;
    if (!layer.file.empty()) {
      const std::string path = folder + "/" + layer.file;
      fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      if (!fd.valid()) return io_error(path + ": " + std::strerror(errno));
    }
    out.files_.push_back(std::move(fd));
  }
  out.extents_.resize(kAtOnce);
  for (auto& extent : out.extents_) extent.resize(m.spec.expert.stride);
  return out;
}

bool FileExperts::visit(std::uint32_t layer, std::span<const ring::TouchMember> set, bool /*decode*/, Use use,
                        Fail fail, Cancelled cancelled) {
  std::vector<compute::ReadyExpert> ready;
  for (std::uint32_t i = 0; i < set.size(); ++i) {
    if (cancelled()) return false;
    std::vector<std::byte>& extent = extents_[ready.size()];
    const auto bytes = std::span(reinterpret_cast<std::uint8_t*>(extent.data()), m_->spec.expert.payload);
    const model::LayerExperts& experts = m_->experts[layer];
    const auto read =
        model::read_exactly(files_[layer].get(), experts.extents[set[i].expert].offset, bytes, experts.file);
    if (!read.ok())
      fail(i, read.error().text);
    else if (XXH3_64bits(bytes.data(), bytes.size()) != experts.extents[set[i].expert].checksum)
      fail(i, experts.file + ": layer " + std::to_string(layer) + " expert " + std::to_string(set[i].expert) +
                  " does not match its checksum; check with `wisp verify` and convert the model again");
    else
      ready.push_back({i, extent.data()});
    if (ready.size() < kAtOnce && i + 1 < set.size()) continue;
    if (!ready.empty()) use(ready);
    ready.clear();
  }
  return true;
}

}  // namespace wisp::eval
