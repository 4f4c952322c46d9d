#include "model/convert.hpp"

#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>

#include "model/convert_plan.hpp"
#include "model/dense_reader.hpp"
#include "model/float_check.hpp"
#include "model/quantize.hpp"
#include "wisp/kernels/number.hpp"
#include "wisp/kernels/relayout.hpp"

namespace wisp::model {
namespace {

using kernels::WeightFormat;

/// Brings one expert at a time into the tile layout. Its buffers hold one matrix.
class ExpertReader {
 public:
  explicit ExpertReader(const ConvertPlan& plan) : plan_(plan) {}

  Status fill(const ExpertSource& source, std::span<std::uint8_t> out) {
    const ExpertShape& shape = plan_.manifest.spec.expert;
    WISP_TRY(fill_part(source[0], shape.gate, out));
    WISP_TRY(fill_part(source[1], shape.up, out));
    return fill_part(source[2], shape.down, out);
  }

  /// What rounding since the last call cost, as the root mean square of the error over that of the weights.
  double take_rounding_error() {
    const double share = squared_weights_ > 0.0 ? std::sqrt(squared_error_ / squared_weights_) : 0.0;
    squared_error_ = squared_weights_ = 0.0;
    return share;
  }

 private:
  Status fill_part(const PartSource& p, const ExpertMatrix& m, std::span<std::uint8_t> out) {
    std::uint8_t* codes = out.data() + m.codes_offset;
    if (m.bias_offset != 0) WISP_TRY(fill_bias(p, m, out));
    if (plan_.experts_int4) return fill_rounded(p, m, out);
    if (p.transposed) {
      WISP_TRY(turn(p, m, m.format));
      kernels::tile_plain(m.format, m.rows, m.cols, raw_.data(), codes);
      return {};
    }
    if (m.format == WeightFormat::kMxfp4) return fill_blocks(p, m, out);
    if (!p.packed) {
      raw_.resize(std::uint64_t{m.rows} * m.cols * 4 / kernels::columns_per_dword(m.format));
      WISP_TRY(plan_.checkpoint.read(*p.data, p.offset, raw_));
      if (const auto bad = first_non_finite(m.format, raw_)) {
        const std::uint64_t size = 4 / kernels::columns_per_dword(m.format);
        return not_finite(plan_.checkpoint, *p.data, p.offset / size + *bad);
      }
      kernels::tile_plain(m.format, m.rows, m.cols, raw_.data(), codes);
      return {};
    }
    words_.resize(p.data->info->bytes / 4);
    WISP_TRY(plan_.checkpoint.read(*p.data, 0,
                                   {reinterpret_cast<std::uint8_t*>(words_.data()), words_.size() * 4}));
    kernels::tile_nibbles(m.format, m.rows, m.cols, words_.data(), codes);
    raw_.resize(p.scale->info->bytes);
    WISP_TRY(plan_.checkpoint.read(*p.scale, 0, raw_));
    auto narrowed = scales_to_bf16(*plain_format(p.scale->info->dtype), raw_, scales_);
    if (!narrowed.ok()) {
      return std::move(narrowed).error().within(plan_.checkpoint.file_of(*p.scale) + ": tensor " +
                                                p.scale->info->name);
    }
    kernels::tile_scales(m.format, m.rows, m.cols / m.group, scales_.data(), out.data() + m.scales_offset);
    return {};
  }

  /// A plain matrix, rounded to int4.
  Status fill_rounded(const PartSource& p, const ExpertMatrix& m, std::span<std::uint8_t> out) {
    const WeightFormat format = *plain_format(p.data->info->dtype);
    const std::size_t size = 4 / kernels::columns_per_dword(format), n = std::size_t{m.rows} * m.cols;
    if (p.transposed) {
      WISP_TRY(turn(p, m, format));
    } else {
      raw_.resize(n * size);
      WISP_TRY(plan_.checkpoint.read(*p.data, p.offset, raw_));
      if (const auto bad = first_non_finite(format, raw_))
        return not_finite(plan_.checkpoint, *p.data, p.offset / size + *bad);
    }
    words_.assign(n / 8, 0);
    scales_.resize(n / m.group);
    std::array<float, 128> weights;
    std::array<std::uint8_t, 128> codes;
    for (std::size_t g = 0; g < scales_.size(); ++g) {
      for (std::size_t i = 0; i < m.group; ++i) {
        weights[i] = kernels::plain_to_float(format, raw_.data() + (g * m.group + i) * size);
        squared_weights_ += static_cast<double>(weights[i]) * static_cast<double>(weights[i]);
      }
      scales_[g] = quantize_int4(std::span(weights).first(m.group), codes.data(), squared_error_);
      for (std::size_t i = 0; i < m.group; ++i)
        words_[(g * m.group + i) / 8] |= std::uint32_t{codes[i]} << 4 * (i % 8);
    }
    kernels::tile_nibbles(m.format, m.rows, m.cols, words_.data(), out.data() + m.codes_offset);
    kernels::tile_scales(m.format, m.rows, m.cols / m.group, scales_.data(), out.data() + m.scales_offset);
    return {};
  }

  /// MXFP4: blocks [rows of the tensor, cols / 2] and scales [rows of the tensor, cols / 32], of which the
  /// matrix has every `step`-th row.
  Status fill_blocks(const PartSource& p, const ExpertMatrix& m, std::span<std::uint8_t> out) {
    const std::size_t row = m.cols / 2, groups = m.cols / 32;
    const std::size_t rows = std::size_t{m.rows} * p.step;
    const auto pick = [&](std::size_t bytes, std::uint8_t* to) {
      for (std::size_t r = 0; r < m.rows; ++r)
        std::memcpy(to + r * bytes, stored_.data() + (p.first + r * p.step) * bytes, bytes);
    };
    stored_.resize(rows * row);
    WISP_TRY(plan_.checkpoint.read(*p.data, p.offset, stored_));
    words_.resize(m.rows * row / 4);
    pick(row, reinterpret_cast<std::uint8_t*>(words_.data()));
    kernels::tile_nibbles(m.format, m.rows, m.cols, words_.data(), out.data() + m.codes_offset);
    stored_.resize(rows * groups);
    WISP_TRY(plan_.checkpoint.read(*p.scale, p.offset / 16, stored_));
    constexpr std::uint8_t kNan = 255;
    if (const auto bad = std::find(stored_.begin(), stored_.end(), kNan); bad != stored_.end())
      return not_finite(plan_.checkpoint, *p.scale,
                        p.offset / 16 + static_cast<std::uint64_t>(bad - stored_.begin()));
    raw_.resize(m.rows * groups);
    pick(groups, raw_.data());
    kernels::tile_scales(m.format, m.rows, m.cols / m.group, raw_.data(), out.data() + m.scales_offset);
    return {};
  }

  /// Brings a matrix that is stored transposed into rows, in raw_.
  Status turn(const PartSource& p, const ExpertMatrix& m, WeightFormat format) {
    const std::size_t size = 4 / kernels::columns_per_dword(format);
    const std::size_t pitch = std::size_t{m.rows} * p.step;
    stored_.resize(m.cols * pitch * size);
    WISP_TRY(plan_.checkpoint.read(*p.data, p.offset, stored_));
    if (const auto bad = first_non_finite(format, stored_))
      return not_finite(plan_.checkpoint, *p.data, p.offset / size + *bad);
    raw_.resize(std::size_t{m.rows} * m.cols * size);
    for (std::size_t c = 0; c < m.cols; ++c)
      for (std::size_t r = 0; r < m.rows; ++r)
        std::memcpy(raw_.data() + (r * m.cols + c) * size,
                    stored_.data() + (c * pitch + p.first + r * p.step) * size, size);
    return {};
  }

  Status fill_bias(const PartSource& p, const ExpertMatrix& m, std::span<std::uint8_t> out) {
    const kernels::WeightFormat format = *plain_format(p.bias->info->dtype);
    const std::size_t size = 4 / kernels::columns_per_dword(format);
    stored_.resize(std::size_t{m.rows} * p.step * size);
    WISP_TRY(plan_.checkpoint.read(*p.bias, p.bias_offset * size, stored_));
    if (const auto bad = first_non_finite(format, stored_))
      return not_finite(plan_.checkpoint, *p.bias, p.bias_offset + *bad);
    for (std::size_t r = 0; r < m.rows; ++r) {
      const float value = kernels::plain_to_float(format, stored_.data() + (p.first + r * p.step) * size);
      std::memcpy(out.data() + m.bias_offset + r * 4, &value, 4);
    }
    return {};
  }

  const ConvertPlan& plan_;
  double squared_error_ = 0.0, squared_weights_ = 0.0;
  std::vector<std::uint8_t> raw_;
  std::vector<std::uint8_t> stored_;
  std::vector<std::uint32_t> words_;
  std::vector<std::uint16_t> scales_;
};

/// Names a conversion: what would be written, and which state of which files it comes from.
std::uint64_t key_of(const ConvertPlan& plan) {
  std::string all = write_manifest(plan.manifest);  // checksums are not in it yet
  std::set<std::string> files;
  for (const auto& e : plan.checkpoint.entries()) files.insert(plan.checkpoint.file_of(e));
  for (const std::string& file : files) {
    struct stat st {};
    ::stat(file.c_str(), &st);
    all += file + " " + std::to_string(st.st_size) + " " + std::to_string(st.st_mtim.tv_sec) + "." +
           std::to_string(st.st_mtim.tv_nsec) + "\n";
  }
  return XXH3_64bits(all.data(), all.size());
}

}  // namespace

Result<ConvertReport> convert(const ConvertOptions& options, const ProgressFn& progress) {
  const auto start = std::chrono::steady_clock::now();
  if (is_wisp_folder(options.source)) {
    return invalid(options.source + ": is converted already; give the original Hugging Face folder");
  }
  WISP_ASSIGN(ConvertPlan plan, plan_conversion(options.source, options.experts_int4));
  WISP_ASSIGN(FolderWriter writer, FolderWriter::begin(options.destination, options.force, plan.bytes,
                                                       progress, options.free_bytes, key_of(plan)));
  for (const auto& [name, text] : plan.texts) WISP_TRY(writer.write_text(name, text));

  DenseReader dense(plan);
  const auto read_rows = [&dense](std::size_t i, std::uint32_t first, std::uint32_t count,
                                  std::span<std::uint8_t> out) { return dense.read(i, first, count, out); };
  WISP_TRY(writer.write_dense(plan.layout, plan.items, plan.manifest, read_rows));

  ExpertReader reader(plan);
  for (std::uint32_t layer = 0; layer < plan.experts.size(); ++layer) {
    const auto& experts = plan.experts[layer];
    if (experts.empty()) continue;
    const auto fill = [&](std::uint32_t e, std::span<std::uint8_t> out) {
      return reader.fill(experts[e], out);
    };
    WISP_TRY(writer.write_experts(plan.layout, layer, plan.manifest, fill));
    const double error = reader.take_rounding_error();
    if (error == 0.0) continue;
    char text[96];
    std::snprintf(text, sizeof text, "layer %u: rounding to int4 moved the experts' weights by %.2f %% (rms)",
                  layer, 100.0 * error);
    plan.notes.emplace_back(text);
  }
  WISP_TRY(writer.finish(plan.manifest));

  ConvertReport report;
  report.name = plan.manifest.name;
  report.experts = plan.manifest.spec.expert_count();
  report.dense_tensors = plan.items.size();
  report.bytes = plan.bytes;
  report.notes = std::move(plan.notes);
  if (writer.resumed_bytes() != 0)
    report.notes.push_back("went on where an earlier run ended: " + std::to_string(writer.resumed_bytes()) +
                           " bytes were there");
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

Result<ConvertEstimate> estimate(const std::string& folder, bool experts_int4) {
  WISP_ASSIGN(const ConvertPlan plan, plan_conversion(folder, experts_int4));
  return ConvertEstimate{plan.bytes, plan.manifest.spec.expert_count(), plan.manifest.name};
}

bool is_wisp_folder(const std::string& folder) {
  std::error_code ec;
  return std::filesystem::is_regular_file(folder + "/manifest.json", ec);
}

bool is_hf_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (is_wisp_folder(folder) || !fs::is_regular_file(folder + "/config.json", ec)) return false;
  for (auto it = fs::directory_iterator(folder, ec); !ec && it != fs::directory_iterator();
       it.increment(ec)) {
    if (it->path().extension() == ".safetensors") return true;
  }
  return false;
}

}  // namespace wisp::model
