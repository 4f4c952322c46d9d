#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "model_fixture.hpp"

/// What several forms of a model are held to.
namespace wisp::compute::testing {

/// The largest difference of a row's logits, over the largest of `want` [got.size()].
inline float share_off(const std::vector<float>& got, const float* want) {
  float largest = 0.0f, difference = 0.0f;
  for (std::size_t v = 0; v < got.size(); ++v) {
    largest = std::max(largest, std::abs(want[v]));
    difference = std::max(difference, std::abs(got[v] - want[v]));
  }
  return difference / largest;
}

/// Chunks of any length, threads, the order of arrival and the instruction set leave every bit of logits and
/// KV as it is.
inline void expect_same_bits_in_chunks(LoadedModel& m, const std::vector<std::uint32_t>& ids,
                                       kernels::KvFormat kv = kernels::KvFormat::kF32, bool fast = false) {
  const auto n = static_cast<std::uint32_t>(ids.size());
  Engine plain(m, kernels::ref_kernels(), 1, 1, 128, false, kv, fast);
  std::vector<std::vector<float>> want;
  for (std::uint32_t p = 0; p < n; ++p) want.push_back(plain.rows(ids, p, 1));
  for (const std::uint32_t chunk : {1u, 7u, 64u, n}) {
    Engine engine(m, kernels::best_kernels(), 2, 128, 128, chunk == 7, kv, fast);
    for (std::uint32_t p = 0; p < n; p += chunk) {
      const std::uint32_t count = std::min(chunk, n - p);
      ASSERT_EQ(engine.rows(ids, p, count), want[p + count - 1])
          << "chunks of " << chunk << ", position " << p;
    }
    ASSERT_TRUE(std::equal(engine.kv().begin(), engine.kv().end(), plain.kv().begin(), plain.kv().end()))
        << "chunks of " << chunk << ": KV";
  }
}

}  // namespace wisp::compute::testing
