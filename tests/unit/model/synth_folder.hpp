#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "model/manifest.hpp"
#include "tiny_checkpoint.hpp"
#include "wisp/kernels/kernels.hpp"

namespace wisp::model::test {

/// A folder's matrices, row by row.
class Folder {
 public:
  explicit Folder(const std::string& path) : manifest(*load_manifest(path)), path_(path) {
    dense_ = bytes_of(manifest.dense_file);
  }
  Manifest manifest;

  std::vector<float> dense_row(const std::string& name, std::uint32_t row) {
    const DenseTensor& t = manifest.dense.at(name);
    const std::uint8_t* at = dense_.data() + manifest.dense_file_offset + t.offset;
    std::vector<float> out(t.cols);
    if (t.tiled) {
      const Planes planes = planes_of(t);
      kernels::gather_row({t.format, t.rows, t.cols, t.group, at, at + planes.scales, nullptr}, row,
                          out.data());
    } else {
      for (std::uint32_t k = 0; k < t.cols; ++k) {  // bf16
        const auto bits = static_cast<std::uint32_t>(at[2 * k] << 16 | at[2 * k + 1] << 24);
        std::memcpy(&out[k], &bits, 4);
      }
    }
    return out;
  }
  std::vector<float> expert_row(std::uint32_t layer, std::uint32_t e, const ExpertMatrix& m,
                                std::uint32_t row) {
    const LayerExperts& x = manifest.experts[layer];
    auto& file = experts_[x.file];
    if (file.empty()) file = bytes_of(x.file);
    const std::uint8_t* at = file.data() + x.extents[e].offset;
    std::vector<float> out(m.cols);
    kernels::gather_row(
        {m.format, m.rows, m.cols, m.group, at + m.codes_offset, at + m.scales_offset, nullptr}, row,
        out.data());
    return out;
  }

 private:
  std::vector<std::uint8_t> bytes_of(const std::string& file) const {
    const std::string s = test::read_file(path_ + "/" + file);
    return {s.begin(), s.end()};
  }
  std::string path_;
  std::vector<std::uint8_t> dense_;
  std::map<std::string, std::vector<std::uint8_t>> experts_;
};

}  // namespace wisp::model::test
