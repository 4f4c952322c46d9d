#include "services/bench/roofs.hpp"

#include <atomic>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace wisp::bench {
namespace {

/// Results go here, so that no loop is dropped.
std::atomic<std::uint64_t> sink;

constexpr std::size_t kStep = 512;
constexpr std::size_t kLine = 64;

// --- plain loops, as wide as the compiler makes them ---

std::uint64_t plain_read_sum(const std::uint8_t* at, std::size_t bytes, std::size_t ahead) {
  std::uint64_t sums[16] = {};
  for (std::size_t i = 0; i < bytes; i += kStep) {
    for (std::size_t k = 0; k < kStep; k += kLine) __builtin_prefetch(at + i + ahead + k);
    for (std::size_t k = 0; k < kStep; k += sizeof sums) {
      std::uint64_t words[16];
      std::memcpy(words, at + i + k, sizeof words);
      for (std::size_t l = 0; l < 16; ++l) sums[l] += words[l];
    }
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t s : sums) sum += s;
  return sum;
}

std::uint64_t plain_int8_macs(std::uint64_t steps) {
  std::uint32_t sums[32] = {};
  std::int16_t a[32], b[32];
  for (unsigned i = 0; i < 32; ++i) {
    a[i] = static_cast<std::int16_t>(sink.load() + i);
    b[i] = static_cast<std::int16_t>(sink.load() - i);
  }
  for (std::uint64_t s = 0; s < steps; ++s)
    for (int i = 0; i < 32; ++i)
      sums[i] += static_cast<std::uint32_t>(a[i] * b[i]) + static_cast<std::uint32_t>(s);
  for (const std::uint32_t v : sums) sink += v;
  return steps * 32;
}

std::uint64_t plain_f32_macs(std::uint64_t steps) {
  float sums[64] = {};
  const float a = 1.0f / static_cast<float>(sink.load() % 7 + 2), b = a * 0.5f;
  for (std::uint64_t s = 0; s < steps; ++s)
    for (float& v : sums) v = v * a + b;
  float sum = 0.0f;
  for (const float v : sums) sum += v;
  sink += static_cast<std::uint64_t>(sum);
  return steps * 64;
}

constexpr Roofs kPlain{"plain", plain_read_sum, plain_int8_macs, plain_f32_macs};

#ifdef __x86_64__

// Enough chains side by side for two units of a latency of five.
constexpr int kChains = 12;

// --- AVX2 ---

__attribute__((target("avx2"))) std::uint64_t avx2_read_sum(const std::uint8_t* at, std::size_t bytes,
                                                            std::size_t ahead) {
  __m256i sums[8];
  for (auto& s : sums) s = _mm256_setzero_si256();
  for (std::size_t i = 0; i < bytes; i += kStep) {
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kStep; k += kLine)
      _mm_prefetch(reinterpret_cast<const char*>(at + i + ahead + k), _MM_HINT_T0);
#pragma GCC unroll 16
    for (std::size_t k = 0; k < 16; ++k)
      sums[k % 8] =
          _mm256_add_epi64(sums[k % 8], _mm256_load_si256(reinterpret_cast<const __m256i*>(at + i + 32 * k)));
  }
  for (int k = 1; k < 8; ++k) sums[0] = _mm256_add_epi64(sums[0], sums[k]);
  alignas(32) std::uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), sums[0]);
  return words[0] + words[1] + words[2] + words[3];
}

__attribute__((target("avx2"))) std::uint64_t avx2_int8_macs(std::uint64_t steps) {
  // Products of bytes, pairs added in 16 bits, pairs of those in 32: what stands in for one instruction.
  __m256i sums[kChains];
  for (auto& s : sums) s = _mm256_setzero_si256();
  const auto seed = static_cast<char>(sink.load());
  __m256i a = _mm256_set1_epi8(seed);
  const __m256i b = _mm256_set1_epi8(static_cast<char>(seed + 3)), ones = _mm256_set1_epi16(1);
  for (std::uint64_t s = 0; s < steps; ++s) {
    asm volatile("" : "+x"(a));
#pragma GCC unroll 12
    for (auto& sum : sums) {
      // Each chain's own product: none is computed once for all.
      __m256i p = a;
      asm volatile("" : "+x"(p));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(p, b), ones));
    }
  }
  for (int k = 1; k < kChains; ++k) sums[0] = _mm256_add_epi32(sums[0], sums[k]);
  sink += static_cast<std::uint64_t>(_mm256_extract_epi32(sums[0], 0));
  return steps * kChains * 32;
}

__attribute__((target("avx2,fma"))) std::uint64_t avx2_f32_macs(std::uint64_t steps) {
  __m256 sums[kChains];
  for (auto& s : sums) s = _mm256_setzero_ps();
  const float seed = 1.0f / static_cast<float>(sink.load() % 7 + 2);
  const __m256 a = _mm256_set1_ps(seed), b = _mm256_set1_ps(seed * 0.5f);
  for (std::uint64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm256_fmadd_ps(sum, a, b);
  }
  for (int k = 1; k < kChains; ++k) sums[0] = _mm256_add_ps(sums[0], sums[k]);
  sink += static_cast<std::uint64_t>(_mm256_cvtss_f32(sums[0]));
  return steps * kChains * 8;
}

// --- AVX-512 ---

__attribute__((target("avx512f"))) std::uint64_t avx512_read_sum(const std::uint8_t* at, std::size_t bytes,
                                                                 std::size_t ahead) {
  __m512i sums[8];
  for (auto& s : sums) s = _mm512_setzero_si512();
  for (std::size_t i = 0; i < bytes; i += kStep) {
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kStep; k += kLine)
      _mm_prefetch(reinterpret_cast<const char*>(at + i + ahead + k), _MM_HINT_T0);
#pragma GCC unroll 8
    for (std::size_t k = 0; k < 8; ++k)
      sums[k] = _mm512_add_epi64(sums[k], _mm512_load_si512(at + i + kLine * k));
  }
  for (int k = 1; k < 8; ++k) sums[0] = _mm512_add_epi64(sums[0], sums[k]);
  alignas(64) std::uint64_t words[8];
  _mm512_store_si512(words, sums[0]);
  return words[0] + words[1] + words[2] + words[3] + words[4] + words[5] + words[6] + words[7];
}

__attribute__((target("avx512f"))) std::uint64_t avx512_f32_macs(std::uint64_t steps) {
  __m512 sums[kChains];
  for (auto& s : sums) s = _mm512_setzero_ps();
  const float seed = 1.0f / static_cast<float>(sink.load() % 7 + 2);
  const __m512 a = _mm512_set1_ps(seed), b = _mm512_set1_ps(seed * 0.5f);
  for (std::uint64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_fmadd_ps(sum, a, b);
  }
  for (int k = 1; k < kChains; ++k) sums[0] = _mm512_add_ps(sums[0], sums[k]);
  sink += static_cast<std::uint64_t>(_mm512_cvtss_f32(sums[0]));
  return steps * kChains * 16;
}

__attribute__((target("avx512f,avx512vnni"))) std::uint64_t vnni_int8_macs(std::uint64_t steps) {
  __m512i sums[kChains];
  for (auto& s : sums) s = _mm512_setzero_si512();
  const auto seed = static_cast<int>(sink.load());
  const __m512i a = _mm512_set1_epi32(seed), b = _mm512_set1_epi32(seed + 3);
  for (std::uint64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
  }
  for (int k = 1; k < kChains; ++k) sums[0] = _mm512_add_epi32(sums[0], sums[k]);
  alignas(64) std::uint32_t words[16];
  _mm512_store_si512(words, sums[0]);
  sink += words[0];
  return steps * kChains * 64;
}

constexpr Roofs kAvx2{"avx2", avx2_read_sum, avx2_int8_macs, avx2_f32_macs};
constexpr Roofs kAvx512{"avx512", avx512_read_sum, avx2_int8_macs, avx512_f32_macs};
constexpr Roofs kVnni{"avx512 with vnni", avx512_read_sum, vnni_int8_macs, avx512_f32_macs};

const Roofs& choose() {
  if (__builtin_cpu_supports("avx512f")) return __builtin_cpu_supports("avx512vnni") ? kVnni : kAvx512;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kAvx2 : kPlain;
}

#else

const Roofs& choose() {
  return kPlain;
}

#endif

}  // namespace

const Roofs& machine_roofs() {
  static const Roofs& chosen = choose();
  return chosen;
}

}  // namespace wisp::bench
