#include <cstdlib>
#include <string_view>

#include "cpu/ref/ref.hpp"
#include "wisp/kernels/kernels.hpp"
#ifdef WISP_KERNELS_AVX2
#include <cpuid.h>

#include "cpu/avx2/avx2.hpp"
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

#ifdef WISP_KERNELS_AVX2
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

bool cpu_has_avx2() {
  // Clang 14 has no name for F16C; the builtin has already checked that the system saves the wide registers.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
}
#endif

const Kernels& choose() {
  const char* wish = std::getenv("WISP_ISA");
  if (wish != nullptr && std::string_view(wish) == name_of(Isa::kRef)) return kRefTable;
  const Kernels* fast = kernels_for(Isa::kAvx2);
  return fast != nullptr ? *fast : kRefTable;
}

}  // namespace

const Kernels& ref_kernels() {
  return kRefTable;
}

const Kernels& best_kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

const Kernels* kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kRef:
      return &kRefTable;
    case Isa::kAvx2:
#ifdef WISP_KERNELS_AVX2
      if (cpu_has_avx2()) return &kAvx2Table;
#endif
      return nullptr;
  }
  return nullptr;
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kRef:
      return "ref";
    case Isa::kAvx2:
      return "avx2";
  }
  return "?";
}

}  // namespace wisp::kernels
