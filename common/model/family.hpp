#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.hpp"

namespace wisp::model {

/// What a module of the checkpoint is.
enum class Role : std::uint8_t {
  kDense,        ///< resident: becomes a tensor of dense.safetensors
  kExpert,       ///< one matrix of one expert
  kFusedExpert,  ///< one matrix of all experts of a layer, [experts, rows, cols]
  kTransposed,   ///< the same as [experts, cols, rows]; of gate and up, rows 2j and 2j + 1
  kFusedBias,    ///< its biases, [experts, rows]
  kBlocks,       ///< MXFP4 of all experts, [experts, rows, cols / 32, 16]; of gate and up, rows 2j and 2j + 1
  kBlockScales,  ///< its scales, [experts, rows, cols / 32]
  kSkip,         ///< known, and not needed: computed tables and the like
};

/// Which matrix of an expert.
enum class Part : std::uint8_t { kGate, kUp, kDown, kGateUp };

/// One line of a family's table of names: a module of the checkpoint (a tensor's name without its last
/// component) with `{L}` for a layer's number and `{E}` for an expert's, and what it is.
struct NameRule {
  std::string_view source;
  Role role = Role::kDense;
  std::string_view canonical = {};  ///< kDense: the name in the manifest, with `{L}`
  Part part = Part::kGate;          ///< experts: which matrix
  bool bare = false;                ///< `source` is the tensor's whole name
};

/// What `wisp eval --profile fast --against exact` says of a trained model of a family. Within limits: at
/// most 0.01 nats a token more, a mean KL of at most 1e-3 nats, and the same first token in at least 99.5 %.
/// The figures stand in kernels/ACCURACY.md.
struct FastMeasure {
  std::string_view model = {};  ///< "" = none was measured: `exact` stays the default
  bool within = false;
};

/// A model family: a description, over code that all families share.
struct Family {
  std::string_view model_type;
  std::span<const std::string_view> architectures;
  std::span<const std::span<const NameRule>> names;  ///< tables, searched one after the other
  Result<ModelSpec> (*describe)(const Config& c);
  bool latent = false;  ///< attention is latent: head_dim says nothing
  FastMeasure fast = {};
  /// What the layer that predicts the token after the next has beside those; empty where such layers are not
  /// known.
  std::span<const NameRule> draft_head = {};
};

/// All families, wired here and nowhere else.
std::span<const Family* const> families();
const Family* find_family(std::string_view model_type);

/// families/*.cpp
const Family& deepseek_v3_family();
const Family& deepseek_v32_family();
const Family& glm4_moe_family();
const Family& glm4_moe_lite_family();
const Family& glm_moe_dsa_family();
const Family& gpt_oss_family();
const Family& kimi_k2_family();
const Family& llama_family();
const Family& mistral_family();
const Family& mixtral_family();
const Family& olmoe_family();
const Family& qwen2_moe_family();
const Family& qwen3_family();
const Family& qwen3_moe_family();

/// A tensor's name, cut into its module and what the last component says.
struct TensorName {
  enum class Kind : std::uint8_t {
    kWeight,
    kBias,
    kPacked,  ///< compressed-tensors, and the next three
    kScale,
    kShape,
    kZeroPoint,
    kScaleInv,  ///< fp8
    kQWeight,   ///< GPTQ and AWQ, and the rest
    kQZeros,
    kQScales,
    kGroupIndex,
    kOther,
  };
  static constexpr std::size_t kKinds = static_cast<std::size_t>(Kind::kOther) + 1;
  std::string module;
  Kind kind = Kind::kOther;  ///< kOther: the module is the whole name
};
TensorName split_name(std::string_view tensor);

struct NameMatch {
  const NameRule* rule = nullptr;
  std::uint32_t layer = 0, expert = 0;
};
/// The rule that a module matches, with its numbers; those of `draft_head` count where that is asked for.
std::optional<NameMatch> match_name(const Family& f, std::string_view module, bool draft_head = false);
/// `text` with the numbers put in.
std::string fill_name(std::string_view text, std::uint32_t layer, std::uint32_t expert = 0);
/// The tensor that a canonical dense name comes from: of the model, or of the draft head that is its layer
/// `draft_layer`.
std::string source_of(const Family& f, std::string_view canonical,
                      std::optional<std::uint32_t> draft_layer = {});

}  // namespace wisp::model
