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
    default:
      return "U8";  // codes and their scales, as bytes
  }
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

bool group_fits(WeightFormat f, std::uint32_t group) {
  if (!kernels::is_coded(f)) return group == 0;
  if (f == WeightFormat::kMxfp4) return group == 32;
  return group != 0 && group % 32 == 0 && group <= kMaxGroup;
}

Planes planes_of(const DenseTensor& t) {
  Planes p;
  if (!t.tiled) {
    p.bytes = kernels::row_bytes(t.format, t.cols);
    return p;
  }
  p.bytes = kernels::codes_bytes(t.format, t.rows, t.cols);
  if (t.group != 0) {
    p.scales = round_up(p.bytes, kPlaneAlign);
    p.bytes = p.scales + kernels::scales_bytes(t.format, t.rows, t.cols, t.group);
  }
  if (t.ordered) {
    p.order = round_up(p.bytes, kPlaneAlign);
    p.bytes = p.order + std::uint64_t{t.cols} * 4;
  }
  return p;
}

ExpertShape lay_out_expert(std::uint32_t hidden, std::uint32_t width, const ExpertForm& form) {
  ExpertShape e;
  std::uint64_t at = 0;
  const auto plane = [&at](std::uint64_t bytes) {
    const std::uint64_t begin = round_up(at, kPlaneAlign);
    at = begin + bytes;
    return begin;
  };
  const auto place = [&](WeightFormat format, std::uint32_t group, std::uint32_t rows, std::uint32_t cols) {
    ExpertMatrix m;
    m.format = format;
    m.rows = rows;
    m.cols = cols;
    m.group = group;
    m.codes_offset = plane(kernels::codes_bytes(format, rows, cols));
    if (group != 0) m.scales_offset = plane(kernels::scales_bytes(format, rows, cols, group));
    if (form.bias) m.bias_offset = plane(std::uint64_t{rows} * 4);
    if (form.ordered) m.order_offset = plane(std::uint64_t{cols} * 4);
    return m;
  };
  e.gate = place(form.gate_up, form.gate_up_group, width, hidden);
  e.up = place(form.gate_up, form.gate_up_group, width, hidden);
  e.down = place(form.down, form.down_group, hidden, width);
  e.payload = at;
  e.stride = round_up(at, kExtentAlign);
  return e;
}

ExpertForm form_of(const ExpertShape& e) {
  return {e.gate.format, e.down.format,           e.gate.group,
          e.down.group,  e.gate.bias_offset != 0, e.gate.order_offset != 0};
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
    t.group = item.group;
    t.tiled = item.matrix;
    t.ordered = item.ordered;
    dense.pad(kPlaneAlign);
    t.offset = dense.end();
    t.bytes = planes_of(t).bytes;
    Json shape = Json::array({item.cols});
    if (kernels::is_coded(item.format))
      shape = Json::array({t.bytes});
    else if (item.matrix)
      shape = Json::array({kernels::tiles_of(item.rows), kernels::dwords_of(item.format, item.cols),
                           kernels::kTileRows, kernels::columns_per_dword(item.format)});
    dense.add(item.name, dtype_of(item.format), shape, t.bytes);
    m.dense.emplace(item.name, t);
  }
  dense.pad(kExtentAlign);
  out.dense_header = dense.finish(
      "dense tensors; matrices as [tiles, dwords, 16 rows, columns in a dword], coded ones with their "
      "scales");
  m.dense_file_offset = out.dense_header.size();
  m.dense_bytes = dense.end();
  out.weight_bytes = m.dense_file_offset + m.dense_bytes;

  m.experts.assign(m.spec.layers.size(), {});
  out.expert_headers.resize(m.spec.layers.size());
  const std::uint64_t stride = m.spec.expert.stride;
  for (std::uint32_t i = 0; i < m.spec.layers.size(); ++i) {
    if (!m.spec.layers[i].moe) continue;
    char name[40];
    std::snprintf(name, sizeof name,
                  m.spec.draft_head ? "draft-head-experts.safetensors" : "experts-%05u.safetensors", i);
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
