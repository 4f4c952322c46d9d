#include "wisp/kernels/kernels.hpp"
#include "wisp/kernels/number.hpp"

namespace wisp::kernels {

void gather_row(const WeightView& w, std::uint32_t row, float* y) {
  Scale scale;
  for (std::uint32_t k = 0; k < w.cols; ++k) {
    if (is_coded(w.format) && k % w.group == 0) scale = scale_of(w, row, k);
    const float code = code_to_float(w.format, dword_at(w, row, k), k);
    y[k] = is_coded(w.format) ? (code - scale.zero) * scale.factor : code;
  }
}

}  // namespace wisp::kernels
