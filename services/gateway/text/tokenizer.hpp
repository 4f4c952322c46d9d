#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "services/gateway/text/added_tokens.hpp"
#include "services/gateway/text/bpe.hpp"

namespace wisp::text {

struct TokenizerModel;

/// A BPE tokenizer read from a Hugging Face `tokenizer.json` or from Kimi's `tiktoken.model`; gives the ids
/// that the reference implementation gives with add_special_tokens=False. A handle to immutable data: copies
/// are cheap, threads may share it.
class Tokenizer {
 public:
  // Limits on a hostile file; the largest published vocabulary has 262,144 entries in a file of 33 MB.
  static constexpr std::size_t kMaxJsonBytes = std::size_t{128} << 20;
  static constexpr std::uint32_t kMaxVocab = 1U << 20;
  static constexpr std::size_t kMaxMerges = std::size_t{1} << 22;
  static constexpr std::size_t kMaxTokenBytes = 4096;  // one vocabulary entry or added token
  static constexpr std::size_t kMaxAddedTokens = 65536;
  // A text beyond this cannot fit any context.
  static constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;

  /// Reads a whole tokenizer.json. kInvalid names the entry that is broken, kUnsupported the part that this
  /// build cannot do (another model than BPE, another normalizer, pre_tokenizer or decoder).
  static Result<Tokenizer> load(std::string_view json);

  /// Reads Kimi's form: `ranks`, the text of tiktoken.model (a line a token: base64 and its id, from 0 on),
  /// and `config`, that of tokenizer_config.json, whose added_tokens_decoder names control tokens among the
  /// kReservedIds ids that follow; the others are `<|reserved_token_ID|>`. Pattern and cuts are Kimi's.
  /// kInvalid names the file and the line or id that is broken, kUnsupported another tokenizer_class.
  static Result<Tokenizer> load_tiktoken(std::string_view ranks, std::string_view config);
  static constexpr std::uint32_t kReservedIds = 256;

  /// The ids of `text` (UTF-8; kInvalid with the byte offset otherwise). `parse_special` true turns special
  /// strings in the text into their ids; false encodes them as ordinary text, so that no control id can come
  /// out (as split_special_tokens=True does it; tokens spelt `<|...|>` that the file does not call special
  /// are control tokens too). Other added tokens become their ids either way. Adds no BOS. kExhausted
  /// where memory is short or the split pattern too slow.
  Result<std::vector<std::uint32_t>> encode(std::string_view text, bool parse_special) const;
  /// The same, or nullopt as soon as there are more than `max_ids`, so that no long piece is merged in vain.
  /// `first`: the text begins the whole prompt (some vocabularies mark that).
  Result<std::optional<std::vector<std::uint32_t>>> encode_up_to(std::size_t max_ids, std::string_view text,
                                                                 bool parse_special, bool first = true) const;

  /// Cuts text at the control tokens written in it, without looking at normalised forms.
  std::vector<Segment> split_control(std::string_view text) const;

  /// The control token that stands at `begin`, if one does; `text` may be anything.
  std::optional<Segment> control_at(std::string_view text, std::size_t begin) const;

  /// The raw bytes of a token, which may be a part of a character; a view into this tokenizer's data. Empty
  /// for ids that name nothing, and for special tokens unless `with_special`.
  std::string_view piece_bytes(std::uint32_t id, bool with_special = false) const;

  /// The file's `special` flag; false for ids that name nothing.
  bool is_special(std::uint32_t id) const;

  /// Whether the id stands for anything.
  bool names(std::uint32_t id) const;

  /// Whether the id is a control token's, which no merge leads to.
  bool is_control(std::uint32_t id) const;

  /// The merges in their order; those of a rank file as tiktoken has them.
  std::vector<Bpe::Merge> merges() const;
  /// Whether it was read from a rank file, whose merges follow from its tokens.
  bool has_ranks_only() const;

  /// The text of `ids`, what is not UTF-8 as U+FFFD. Ids that name nothing add nothing.
  std::string decode(const std::vector<std::uint32_t>& ids, bool skip_special) const;

  /// One more than the largest id; ids in between may be unused.
  std::uint32_t vocab_size() const;

  /// The id of an added token by its exact text.
  std::optional<std::uint32_t> id_of(std::string_view added) const;

  /// What the post-processor of tokenizer.json writes before a text.
  const std::vector<std::uint32_t>& post_processor_first() const;

  /// Every added token, in the file's order.
  const std::vector<AddedToken>& added_tokens() const;

 private:
  explicit Tokenizer(std::shared_ptr<const TokenizerModel> model) : model_(std::move(model)) {}
  std::shared_ptr<const TokenizerModel> model_;
};

}  // namespace wisp::text
