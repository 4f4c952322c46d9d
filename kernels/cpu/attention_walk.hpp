#pragma once
#include <cstddef>
#include <cstdint>

#include "wisp/kernels/canon.hpp"
#include "wisp/kernels/kv_format.hpp"

/// How attention walks over pages, for tables that answer one query at a time: a piece of the pages stays in
/// a near cache while the queries pass over it. Included by the files of instruction sets: all of it is in an
/// anonymous namespace, so that no copy serves another one's code.
namespace wisp::kernels {
namespace {

/// End of the block (CANON.md, "products") that begins at `begin`, of what ends at `end`.
constexpr std::uint32_t end_of_block(std::uint32_t begin, std::uint32_t end) {
  return end - begin < kBlockColumns ? end : begin + kBlockColumns;
}

/// Calls score<Pages>(query, page) for all pages, four or one at a time, and queries in [0, n).
template <class Score>
void walk_scores(const KvRows& keys, std::uint32_t n, const Score& score) {
  const std::uint32_t pages = (keys.count + kPageTokens - 1) / kPageTokens;
  const auto pass = [&]<std::uint32_t Pages>(std::uint32_t page) {
    for (std::size_t i = 0; i < n; ++i) score.template operator()<Pages>(i, page);
  };
  std::uint32_t page = 0;
  for (; page + 4 <= pages; page += 4) pass.template operator()<4>(page);
  for (; page < pages; ++page) pass.template operator()<1>(page);
}

/// Calls mix<Vectors>(query, begin, end, d) for all blocks of positions, for entries from d on, eight or one
/// vector of `lanes` at a time, and queries in [0, n) that see any of a block, or that have seen none:
/// [begin, end) is what the query sees of it.
template <class Mix>
void walk_values(const KvRows& values, const std::uint32_t* counts, std::uint32_t n, std::uint32_t lanes,
                 const Mix& mix) {
  std::uint32_t begin = 0;
  do {
    const std::uint32_t end = end_of_block(begin, values.count);
    const auto pass = [&]<std::uint32_t Vectors>(std::uint32_t d) {
      for (std::size_t i = 0; i < n; ++i)
        if (begin == 0 || begin < counts[i])
          mix.template operator()<Vectors>(i, begin, counts[i] < end ? counts[i] : end, d);
    };
    std::uint32_t d = 0;
    for (; d + 8 * lanes <= values.width; d += 8 * lanes) pass.template operator()<8>(d);
    for (; d < values.width; d += lanes) pass.template operator()<1>(d);
    begin = end;
  } while (begin < values.count);
}

}  // namespace
}  // namespace wisp::kernels
