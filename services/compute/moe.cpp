#include <algorithm>
#include <array>

#include "services/compute/forward.hpp"

namespace wisp::compute {

namespace {
/// In the order of model::RouterKind.
constexpr std::array kRouteKinds{kernels::RouteKind::kSoftmaxTopK, kernels::RouteKind::kSigmoidTopK,
                                 kernels::RouteKind::kTopKSoftmax};
}  // namespace

void Forward::route(std::uint32_t layer, std::uint32_t rows) {
  const model::RouterSpec& r = spec_.router;
  const LayerWeights& w = weights_.layers[layer];
  const kernels::RouteRule rule{kRouteKinds[static_cast<std::size_t>(r.kind)],
                                r.experts,
                                r.top_k,
                                r.renormalise,
                                r.groups,
                                r.kept_groups,
                                r.scale};
  linear(w.router, normed_.data(), router_.data(), rows);
  set_.clear();
  std::vector<std::int32_t> member_of(r.experts, -1);
  for (std::size_t row = 0; row < rows; ++row) {
    std::uint32_t* ids = chosen_.data() + row * r.top_k;
    kernels::route(rule, router_.data() + row * r.experts, w.selection.data(), route_scratch_.data(), ids,
                   chosen_weight_.data() + row * r.top_k, k_);
    for (std::uint32_t rank = 0; rank < r.top_k; ++rank) {
      std::int32_t& m = member_of[ids[rank]];
      if (m < 0) {
        m = static_cast<std::int32_t>(set_.size());
        set_.push_back({static_cast<std::uint16_t>(ids[rank]), 0, 0});
      }
      ++set_[static_cast<std::size_t>(m)].rows;
    }
  }
  // Places of the products: grouped by expert, so that an expert reads and writes consecutive rows.
  member_first_.assign(set_.size() + 1, 0);
  for (std::size_t m = 0; m < set_.size(); ++m) member_first_[m + 1] = member_first_[m] + set_[m].rows;
  std::vector<std::uint32_t> next(member_first_.begin(), member_first_.end() - 1);
  for (std::size_t i = 0; i < std::size_t{rows} * r.top_k; ++i) {
    const std::uint32_t place = next[static_cast<std::size_t>(member_of[chosen_[i]])]++;
    product_of_[i] = place;
    place_row_[place] = static_cast<std::uint32_t>(i / r.top_k);
  }
}

bool Forward::moe_ffn(std::uint32_t layer, std::span<Sequence> sequences, ExpertSource& experts,
                      const std::function<bool()>& cancelled) {
  const auto rows = static_cast<std::uint32_t>(rows_.size());
  const std::uint32_t top_k = spec_.router.top_k;
  const std::size_t hidden = spec_.hidden;
  route(layer, rows);
  const auto fail = [&](std::uint32_t member, const std::string& why) {
    for (std::uint32_t p = member_first_[member]; p < member_first_[member + 1]; ++p) {
      std::string& error = sequences[rows_[place_row_[p]].sequence].error;
      if (error.empty()) error = why;
      std::fill_n(product_.begin() + static_cast<std::ptrdiff_t>(p * hidden), hidden, 0.0f);
    }
  };
  const auto use = [&](std::span<const ReadyExpert> ready) { multiply_experts(ready); };
  if (!experts.visit(layer, set_, decode_, use, fail, cancelled)) return false;
  // Summed in rank order, never in the order of arrival from the drive.
  for (std::size_t row = 0; row < rows; ++row)
    for (std::uint32_t rank = 0; rank < top_k; ++rank) {
      const std::size_t i = row * top_k + rank;
      k_.accumulate(chosen_weight_[i], product_.data() + product_of_[i] * hidden,
                    block_.data() + row * hidden, hidden, rank == 0);
    }
  if (spec_.shared.width != 0) add_shared(layer);
  return true;
}

void Forward::add_shared(std::uint32_t layer) {
  const std::size_t rows = rows_.size(), hidden = spec_.hidden;
  mlp(layer, shared_.data());
  if (!spec_.shared.gated) return k_.add(block_.data(), shared_.data(), rows * hidden);
  linear(weights_.layers[layer].mix, normed_.data(), mix_.data(), static_cast<std::uint32_t>(rows));
  for (std::size_t row = 0; row < rows; ++row)
    k_.accumulate(kernels::canonical_sigmoid(mix_[row]), shared_.data() + row * hidden,
                  block_.data() + row * hidden, hidden, false);
}

void Forward::multiply_experts(std::span<const ReadyExpert> ready) {
  const std::size_t hidden = spec_.hidden;
  const std::uint32_t width = spec_.moe_width;
  struct Job {
    ExpertWeights weights;
    std::uint32_t first;  // place in product_
    std::uint32_t rows;
    std::uint32_t local;  // row in gathered_, gate_ and up_
  };
  const std::uint32_t up_tiles = kernels::tiles_of(width);
  const std::uint32_t down_tiles = kernels::tiles_of(spec_.hidden);
  const bool ordered = spec_.expert.gate.order_offset != 0;
  std::vector<Job> jobs;
  for (std::size_t done = 0; done < ready.size();) {
    // As many experts at once as the scratch has rows for.
    jobs.clear();
    std::uint32_t rows = 0;
    for (; done < ready.size() && rows + set_[ready[done].member].rows <= max_rows_; ++done) {
      const std::uint32_t m = ready[done].member;
      jobs.push_back(
          {ExpertWeights::at(spec_.expert, ready[done].extent), member_first_[m], set_[m].rows, rows});
      rows += set_[m].rows;
    }
    for (const Job& j : jobs)
      for (std::uint32_t t = 0; t < j.rows; ++t) {
        const float* x = normed_.data() + place_row_[j.first + t] * hidden;
        const std::size_t at = (j.local + t) * hidden;
        if (!ordered) {
          std::copy_n(x, hidden, gathered_.data() + at);
          continue;
        }
        kernels::in_order(j.weights.gate.order, spec_.hidden, x, gathered_.data() + at);
        kernels::in_order(j.weights.up.order, spec_.hidden, x, ordered_.data() + at);
      }
    const std::uint64_t cost = std::uint64_t{rows} * hidden * width;
    const auto n = static_cast<std::uint32_t>(jobs.size());
    const std::uint32_t up_step = std::max(1u, up_tiles / 8), down_step = std::max(1u, down_tiles / 8);
    const std::uint32_t up_items = (up_tiles + up_step - 1) / up_step,
                        down_items = (down_tiles + down_step - 1) / down_step;
    // All experts are stored in one form, so one call prepares the inputs of all jobs.
    const kernels::Int8Rows bytes = bytes_for(jobs[0].weights.gate, gathered_.data(), rows, bytes_);
    const kernels::Int8Rows up_bytes =
        ordered ? bytes_for(jobs[0].weights.up, ordered_.data(), rows, up_bytes_) : bytes;
    pool_.run(n * up_items, 2 * cost, [&](std::uint32_t i, std::uint32_t) {
      const Job& j = jobs[i / up_items];
      const std::uint32_t a = i % up_items * up_step, b = std::min(up_tiles, a + up_step);
      const float* x = gathered_.data() + j.local * hidden;
      const float* x_up = (ordered ? ordered_ : gathered_).data() + j.local * hidden;
      product(j.weights.gate, x, bytes.from(j.local), j.rows, gate_.data() + std::size_t{j.local} * width, a,
              b);
      product(j.weights.up, x_up, up_bytes.from(j.local), j.rows, up_.data() + std::size_t{j.local} * width,
              a, b);
    });
    for (const Job& j : jobs) {
      if (j.weights.gate_bias == nullptr) break;
      for (std::size_t t = j.local; t < j.local + j.rows; ++t) {
        k_.add(gate_.data() + t * width, j.weights.gate_bias, width);
        k_.add(up_.data() + t * width, j.weights.up_bias, width);
      }
    }
    glu(std::size_t{rows} * width);
    if (ordered) {  // up_ has done its work
      for (const Job& j : jobs)
        for (std::size_t t = j.local; t < j.local + j.rows; ++t)
          kernels::in_order(j.weights.down.order, width, gate_.data() + t * width, up_.data() + t * width);
    }
    const float* inner = (ordered ? up_ : gate_).data();
    const kernels::Int8Rows inner_bytes = bytes_for(jobs[0].weights.down, inner, rows, bytes_);
    pool_.run(n * down_items, cost, [&](std::uint32_t i, std::uint32_t) {
      const Job& j = jobs[i / down_items];
      const std::uint32_t a = i % down_items * down_step, b = std::min(down_tiles, a + down_step);
      product(j.weights.down, inner + std::size_t{j.local} * width, inner_bytes.from(j.local), j.rows,
              product_.data() + j.first * hidden, a, b);
    });
    for (const Job& j : jobs) {
      if (j.weights.down_bias == nullptr) break;
      for (std::size_t t = j.first; t < j.first + j.rows; ++t)
        k_.add(product_.data() + t * hidden, j.weights.down_bias, hidden);
    }
  }
}

}  // namespace wisp::compute
