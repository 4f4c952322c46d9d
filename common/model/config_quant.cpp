#include <algorithm>

#include "model/config.hpp"
#include "model/limits.hpp"

namespace wisp::model {
namespace {

constexpr std::string_view kMethods = "compressed-tensors, fp8, gptq, awq, mxfp4";

/// One config group of compressed-tensors.
Status read_packed_group(const Fields& group, const std::string& format, QuantConfig& quant) {
  if (!group.has("weights")) return {};  // a group that quantises activations only
  WISP_ASSIGN(const Fields w, group.object("weights"));
  WISP_ASSIGN(const std::uint32_t bits, w.u32("num_bits", 1, 64));
  WISP_ASSIGN(const std::string type, w.text_or("type", "int"));
  WISP_ASSIGN(const std::string strategy, w.text("strategy"));
  WISP_ASSIGN(const bool symmetric, w.boolean_or("symmetric", true));
  WISP_ASSIGN(const std::string order, w.find("actorder") && w.find("actorder")->is_boolean()
                                           ? Result<std::string>("group")
                                           : w.text_or("actorder", "none"));
  WISP_ASSIGN(const std::string own_format, group.text_or("format", format));
  const std::string what = type + std::to_string(bits) + (symmetric ? " symmetric" : " asymmetric") +
                           ", strategy " + strategy + ", format " + own_format + ", actorder " + order;
  const bool static_order = order == "none" || order == "weight" || order == "static";
  if (own_format != "pack-quantized" || bits != 4 || type != "int" || strategy != "group" || !static_order) {
    return unsupported(w.where() + ": " + printable(what) +
                       " is not supported; supported: int4, strategy group, format pack-quantized");
  }
  WISP_ASSIGN(const std::uint32_t size, w.u32("group_size", 1, kMaxWidth));
  if (size != 32 && size != 64 && size != 128) {
    return unsupported(w.where() + ": group_size " + std::to_string(size) +
                       " is not supported; supported: 32, 64, 128");
  }
  if (quant.group != 0 && (quant.group != size || quant.symmetric != symmetric)) {
    return unsupported(w.where() + ": " + printable(what) + ", group_size " + std::to_string(size) +
                       " beside another group's " + std::to_string(quant.group) + " is not supported");
  }
  quant.group = size;
  quant.symmetric = symmetric;
  return {};
}

Status read_compressed(const Fields& q, QuantConfig& quant) {
  WISP_ASSIGN(const std::string format, q.text("format"));
  for (const char* extra : {"transform_config", "sparsity_config"}) {
    const Json* v = q.find(extra);
    if (v && !v->empty() && v->value("format", std::string()) != "dense")
      return unsupported(q.where() + ": " + extra + " is not supported");
  }
  WISP_ASSIGN(const Fields groups, q.object("config_groups"));
  for (const auto& [name, value] : groups.json().items()) {
    if (!value.is_object()) return groups.wrong(name, "is not an object");
    WISP_TRY(read_packed_group(Fields(value, groups.where() + ": " + printable(name)), format, quant));
  }
  if (quant.group == 0) return groups.wrong("weights", "is missing in every group");
  return {};
}

Status read_fp8(const Fields& q) {
  WISP_ASSIGN(const std::string fmt, q.text_or("fmt", "e4m3"));
  if (fmt != "e4m3")
    return unsupported(q.where() + ": fmt " + printable(fmt) + " is not supported; supported: e4m3");
  WISP_ASSIGN(const Json* block, q.array("weight_block_size"));
  if (*block == Json::array({128, 128})) return {};
  return unsupported(q.where() + ": weight_block_size " + printable(block->dump()) +
                     " is not supported; supported: [128, 128]");
}

/// What GPTQ and AWQ share: four bits, and groups of columns; -1 is one group for all.
Status read_groups(const Fields& q, QuantConfig& quant) {
  WISP_ASSIGN(const std::uint32_t bits, q.has("w_bit") ? q.u32("w_bit", 1, 64) : q.u32("bits", 1, 64));
  if (bits != 4)
    return unsupported(q.where() + ": " + std::to_string(bits) + " bits are not supported; supported: 4");
  const char* const key = q.has("q_group_size") ? "q_group_size" : "group_size";
  const Json* const size = q.find(key);
  if (size != nullptr && *size == -1) return {};
  WISP_ASSIGN(quant.group, q.u32(key, 1, kMaxWidth));
  if (quant.group % 32 == 0) return {};
  return unsupported(q.where() + ": " + key + " " + std::to_string(quant.group) +
                     " is not supported; supported: multiples of 32, and -1");
}

Status read_gptq(const Fields& q, QuantConfig& quant) {
  WISP_TRY(read_groups(q, quant));
  WISP_ASSIGN(quant.act_order, q.boolean_or("desc_act", false));
  WISP_ASSIGN(const std::string older, q.text_or("format", "gptq"));
  WISP_ASSIGN(const std::string format, q.text_or("checkpoint_format", older));
  if (format != "gptq" && format != "gptq_v2")
    return unsupported(q.where() + ": checkpoint_format " + printable(format) +
                       " is not supported; supported: gptq, gptq_v2");
  quant.zero_offset = format == "gptq" ? 1 : 0;
  return {};
}

Status read_awq(const Fields& q, QuantConfig& quant) {
  WISP_TRY(read_groups(q, quant));
  WISP_ASSIGN(std::string version, q.text_or("version", "gemm"));
  std::transform(version.begin(), version.end(), version.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (version != "gemm")
    return unsupported(q.where() + ": version " + printable(version) + " is not supported; supported: gemm");
  WISP_ASSIGN(const bool zero_point, q.boolean_or("zero_point", true));
  quant.symmetric = !zero_point;
  return {};
}

}  // namespace

Result<QuantConfig> read_quant(const Fields& f) {
  QuantConfig quant;
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (!f.has(key)) continue;
    WISP_ASSIGN(const Fields q, f.object(key));
    WISP_ASSIGN(const std::string method, q.text("quant_method"));
    if (method == "mxfp4") {
      quant.method = QuantMethod::kMxfp4;
    } else if (method == "compressed-tensors") {
      quant.method = QuantMethod::kCompressed;
      WISP_TRY(read_compressed(q, quant));
    } else if (method == "fp8") {
      quant.method = QuantMethod::kFp8;
      WISP_TRY(read_fp8(q));
    } else if (method == "gptq") {
      quant.method = QuantMethod::kGptq;
      WISP_TRY(read_gptq(q, quant));
    } else if (method == "awq") {
      quant.method = QuantMethod::kAwq;
      WISP_TRY(read_awq(q, quant));
    } else {
      return unsupported(q.where() + ": quant_method " + printable(method) +
                         " is not supported; supported: " + std::string(kMethods) +
                         ", or unquantised weights");
    }
    return quant;
  }
  return quant;
}

}  // namespace wisp::model
