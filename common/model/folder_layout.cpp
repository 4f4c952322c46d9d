#include <cstdio>

#include "model/folder_writer.hpp"
#include "model/json.hpp"
#include "model/limits.hpp"

namespace wisp::model {
namespace {

using kernels::WeightFormat;

const char* dtype_of(WeightFormat f) {
  switch (f) {
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kBf16:
      return "BF16";
    case WeightFormat::kF16:
      return "F16";
    case WeightFormat::kInt4:
    case WeightFormat::kMxfp4:
      return "U8";
  }
  return "U8";
}

/// Entries in the order of their offsets; readers of the format allow no gap, so padding gets tensors of its
/// own.
class HeaderText {
 public:
  void add(const std::string& name, const char* dtype, const Json& shape, std::uint64_t bytes) {
    text_ += text_.empty() ? "" : ",";
    text_ += Json(name).dump() + ":" +
             Json{{"dtype", dtype}, {"shape", shape}, {"data_offsets", {end_, end_ + bytes}}}.dump();
    end_ += bytes;
  }
  void pad(std::uint64_t unit) {
    const std::uint64_t n = round_up(end_, unit) - end_;
    if (n != 0) add("padding." + std::to_string(pads_++), "U8", Json::array({n}), n);
  }
  std::uint64_t end() const { return end_; }

  /// The length word and the header, padded with blanks so that the data begins at a multiple of 4096.
  std::string finish(const char* content) const {
    std::string s =
        "{\"__metadata__\":" +
        Json{{"format", "wisp"}, {"layout_version", std::to_string(kLayoutVersion)}, {"content", content}}
            .dump() +
        (text_.empty() ? "" : ",") + text_ + "}";
    s.resize(round_up(8 + s.size(), kExtentAlign) - 8, ' ');
    std::string out;
    for (unsigned i = 0; i < 8; ++i)
      out.push_back(static_cast<char>(std::uint64_t{s.size()} >> (8 * i) & 0xff));
    return out + s;
  }

 private:
  std::string text_;
  std::uint64_t end_ = 0, pads_ = 0;
};

}  // namespace

std::uint64_t row_bytes(const DenseItem& item) {
  return std::uint64_t{item.cols} * 4 / kernels::columns_per_dword(item.format);
}

FolderLayout lay_out_folder(Manifest& m, const std::vector<DenseItem>& items) {
  FolderLayout out;
  HeaderText dense;
  m.dense.clear();
  for (const auto& item : items) {
    DenseTensor t;
    t.format = item.format;
    t.rows = item.rows;
    t.cols = item.cols;
    t.tiled = item.matrix;
    dense.pad(kPlaneAlign);
    t.offset = dense.end();
    t.bytes = item.matrix ? kernels::codes_bytes(item.format, item.rows, item.cols) : row_bytes(item);
    const Json shape =
        item.matrix ? Json::array({kernels::tiles_of(item.rows), kernels::dwords_of(item.format, item.cols),
                                   kernels::kTileRows, kernels::columns_per_dword(item.format)})
                    : Json::array({item.cols});
    dense.add(item.name, dtype_of(item.format), shape, t.bytes);
    m.dense.emplace(item.name, t);
  }
  dense.pad(kExtentAlign);
  out.dense_header = dense.finish("dense tensors; matrices as [tiles, dwords, 16 rows, columns in a dword]");
  m.dense_file_offset = out.dense_header.size();
  m.dense_bytes = dense.end();
  out.weight_bytes = m.dense_file_offset + m.dense_bytes;

  m.experts.assign(m.spec.layers.size(), {});
  out.expert_headers.resize(m.spec.layers.size());
  const std::uint64_t stride = m.spec.expert.stride;
  for (std::uint32_t i = 0; i < m.spec.layers.size(); ++i) {
    if (!m.spec.layers[i].moe) continue;
    char name[40];
    std::snprintf(name, sizeof name, "experts-%05u.safetensors", i);
    HeaderText header;
    for (std::uint32_t e = 0; e < m.spec.router.experts; ++e) {
      header.add(layer_tensor(i, "experts." + std::to_string(e)), "U8", Json::array({stride}), stride);
    }
    out.expert_headers[i] =
        header.finish("one extent per expert: gate, up, down in tiles, each followed by its scales");
    m.experts[i].file = name;
    m.experts[i].extents.resize(m.spec.router.experts);
    for (std::uint32_t e = 0; e < m.spec.router.experts; ++e) {
      m.experts[i].extents[e].offset = out.expert_headers[i].size() + e * stride;
    }
    out.weight_bytes += out.expert_headers[i].size() + header.end();
  }
  out.total_bytes = out.weight_bytes + write_manifest(m).size();  // checksums have a fixed width
  return out;
}

}  // namespace wisp::model
