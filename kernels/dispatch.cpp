#include <cstdlib>
#include <string_view>
#include <vector>

#include "cpu/ref/ref.hpp"
#include "wisp/kernels/kernels.hpp"
#ifdef WISP_KERNELS_X86
#include <cpuid.h>

#include "cpu/avx2/avx2.hpp"
#include "cpu/avx512/avx512.hpp"
#endif
#ifdef WISP_KERNELS_NEON
#include <sys/auxv.h>

#include "cpu/neon/neon.hpp"
#endif

namespace wisp::kernels {
namespace {

constexpr Kernels kRefTable{
    .isa = Isa::kRef,
    .linear = ref::linear,
    .quantise = ref::quantise,
    .linear_int8 = ref::linear_int8,
    .rms_norm = ref::rms_norm,
    .attention_scores = ref::attention_scores,
    .softmax = ref::softmax,
    .attention_values = ref::attention_values,
    .silu_mul = ref::silu_mul,
    .accumulate = ref::accumulate,
    .add = ref::add,
};

#ifdef WISP_KERNELS_X86
constexpr Kernels kAvx2Table{
    .isa = Isa::kAvx2,
    .linear = avx2::linear,
    .quantise = avx2::quantise,
    .linear_int8 = avx2::linear_int8,
    .rms_norm = avx2::rms_norm,
    .attention_scores = avx2::attention_scores,
    .softmax = avx2::softmax,
    .attention_values = avx2::attention_values,
    .silu_mul = avx2::silu_mul,
    .accumulate = avx2::accumulate,
    .add = avx2::add,
};

constexpr Kernels kAvx512Table{
    .isa = Isa::kAvx512,
    .linear = avx512::linear,
    .quantise = avx512::quantise,
    .linear_int8 = avx512::linear_int8,
    .rms_norm = avx512::rms_norm,
    .attention_scores = avx512::attention_scores,
    .softmax = avx512::softmax,
    .attention_values = avx512::attention_values,
    .silu_mul = avx512::silu_mul,
    .accumulate = avx512::accumulate,
    .add = avx512::add,
};

constexpr Kernels with_vnni(Kernels k) {
  k.isa = Isa::kAvx512Vnni;
  k.linear_int8 = avx512::linear_int8_vnni;
  return k;
}
constexpr Kernels kAvx512VnniTable = with_vnni(kAvx512Table);

// The builtins have already checked that the system saves the wide registers.
bool has_avx2() {
  // Clang 14 has no name for F16C.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512_vnni() {
  return has_avx512() && __builtin_cpu_supports("avx512vnni");
}
#endif

#ifdef WISP_KERNELS_NEON
constexpr Kernels kNeonTable{
    .isa = Isa::kNeon,
    .linear = neon::linear,
    .quantise = neon::quantise,
    .linear_int8 = neon::linear_int8,
    .rms_norm = neon::rms_norm,
    .attention_scores = neon::attention_scores,
    .softmax = neon::softmax,
    .attention_values = neon::attention_values,
    .silu_mul = neon::silu_mul,
    .accumulate = neon::accumulate,
    .add = neon::add,
};

constexpr Kernels with_dot(Kernels k) {
  k.isa = Isa::kNeonDot;
  k.linear_int8 = neon::linear_int8_dot;
  return k;
}
constexpr Kernels kNeonDotTable = with_dot(kNeonTable);

bool has_neon_dot() {
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}
#endif

/// A table and whether this CPU can run it; ascending by speed. A new instruction set is a line here.
struct Candidate {
  const Kernels* table;
  bool (*runs)();
};
constexpr Candidate kCandidates[] = {
    {&kRefTable, [] { return true; }},
#ifdef WISP_KERNELS_X86
    {&kAvx2Table, has_avx2},
    {&kAvx512Table, has_avx512},
    {&kAvx512VnniTable, has_avx512_vnni},
#endif
#ifdef WISP_KERNELS_NEON
    {&kNeonTable, [] { return true; }},
    {&kNeonDotTable, has_neon_dot},
#endif
};

const Kernels& choose() {
  const char* wish = std::getenv("WISP_ISA");
  for (const Kernels* k : all_kernels())
    if (wish != nullptr && name_of(k->isa) == wish) return *k;
  return *all_kernels().back();
}

}  // namespace

std::span<const Kernels* const> all_kernels() {
  static const std::vector<const Kernels*> tables = [] {
    std::vector<const Kernels*> runnable;
    for (const Candidate& c : kCandidates)
      if (c.runs()) runnable.push_back(c.table);
    return runnable;
  }();
  return tables;
}

const Kernels& ref_kernels() {
  return kRefTable;
}

const Kernels& best_kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

std::string isa_refusal() {
  const char* wish = std::getenv("WISP_ISA");
  if (wish == nullptr) return "";
  std::string names;
  for (const Kernels* k : all_kernels()) {
    if (name_of(k->isa) == wish) return "";
    names += (names.empty() ? "" : ", ") + std::string(name_of(k->isa));
  }
  return "WISP_ISA=" + std::string(wish) + " is no instruction set that runs here: " + names +
         "; without it the last of them is taken";
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kRef:
      return "ref";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
    case Isa::kNeon:
      return "neon";
    case Isa::kNeonDot:
      return "neondot";
  }
  return "?";
}

}  // namespace wisp::kernels
