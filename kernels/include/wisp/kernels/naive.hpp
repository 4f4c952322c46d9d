#pragma once
#include <cstdint>

/// Latent attention has two forms that differ in bits: absorbed (queries fold into the latents) and naive
/// (keys and values of each head are rebuilt from the latents). Which one a row takes is decided by its
/// position and the prompt's length alone, so that neither chunks nor restarts nor the company of a row
/// change a bit.
///
/// A form decides what later layers write into the pages, so pages carry that of their rows: whoever comes to
/// reuse a prefix may take only positions for which the new request prescribes the same form. Until prefixes
/// are reused, a page serves one request and the profile hash covers it.
namespace wisp::kernels {

/// Prompt positions that change their form together, at absolute multiples.
inline constexpr std::uint32_t kNaiveUnit = 512;
/// Positions whose keys and values are rebuilt as one item, at absolute multiples.
inline constexpr std::uint32_t kNaiveBlock = 256;
/// Heads whose keys and values are held at a time, for the whole context. Changes no bit.
inline constexpr std::uint32_t kNaiveHeads = 4;

/// Under `--prefill naive` rows at positions below this are naive, all others absorbed: those of an
/// incomplete unit and every generated token.
constexpr std::uint32_t naive_positions(std::uint32_t prompt_tokens) {
  return prompt_tokens / kNaiveUnit * kNaiveUnit;
}

}  // namespace wisp::kernels
