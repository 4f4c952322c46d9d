#include "model/expert_reader.hpp"

#include <cstring>

#include "model/float_check.hpp"
#include "wisp/kernels/number.hpp"
#include "wisp/kernels/relayout.hpp"

namespace wisp::model {

Status ExpertReader::fill(const ExpertSource& source, std::span<std::uint8_t> out) {
  const ExpertShape& shape = plan_.manifest.spec.expert;
  WISP_TRY(fill_part(source[0], shape.gate, out));
  WISP_TRY(fill_part(source[1], shape.up, out));
  return fill_part(source[2], shape.down, out);
}

void ExpertReader::will_fill(const ExpertSource& source) const {
  for (const StoredMatrix& m : source) {
    const std::uint64_t bytes =
        m.data->info->shape.size() > 2
            ? m.data->info->bytes / m.data->info->shape[0]  // one expert of all of them
            : m.data->info->bytes;
    plan_.checkpoint->will_read(*m.data, m.offset, bytes);
  }
}

Status ExpertReader::fill_part(const StoredMatrix& m, const ExpertMatrix& to, std::span<std::uint8_t> out) {
  const std::uint32_t groups = kernels::groups_of(to.cols, to.group);
  codes_.resize(to.rows * kernels::row_bytes(to.format, to.cols));
  scales_.resize(std::size_t{kernels::scale_rows(to.format, to.rows)} * groups *
                 kernels::traits_of(to.format).scale_bytes);
  if (to.format == m.native()) {
    WISP_TRY(reader_.rows(m, 0, to.rows, codes_, scales_));
  } else {
    floats_.resize(std::size_t{to.rows} * to.cols);
    WISP_TRY(reader_.floats(m, 0, to.rows, floats_.data()));
    encode_rows(to.format, floats_.data(), to.rows, to.cols, codes_, scales_, cost_);
  }
  kernels::tile_codes(to.format, to.rows, to.cols, codes_.data(), out.data() + to.codes_offset);
  if (to.scales_offset != 0)
    kernels::tile_scales(to.format, to.rows, groups, scales_.data(), out.data() + to.scales_offset);
  if (to.order_offset != 0) {
    WISP_TRY(reader_.order(m, order_));
    std::memcpy(out.data() + to.order_offset, order_.data(), order_.size() * 4);
  }
  return to.bias_offset == 0 ? Status{} : fill_bias(m, out.data() + to.bias_offset);
}

Status ExpertReader::fill_bias(const StoredMatrix& m, std::uint8_t* out) {
  const kernels::WeightFormat format = *plain_format(m.bias->info->dtype);
  const std::size_t size = kernels::row_bytes(format, 1);
  codes_.resize(std::size_t{m.rows} * m.step * size);
  WISP_TRY(plan_.checkpoint->read(*m.bias, m.bias_offset * size, codes_));
  if (const auto bad = first_non_finite(format, codes_))
    return not_finite(*plan_.checkpoint, *m.bias, m.bias_offset + *bad);
  for (std::size_t r = 0; r < m.rows; ++r) {
    const float value = kernels::plain_to_float(format, codes_.data() + (m.first + r * m.step) * size);
    std::memcpy(out + r * 4, &value, 4);
  }
  return {};
}

}  // namespace wisp::model
