#include <algorithm>
#include <array>
#include <utility>

#include "services/compute/forward.hpp"

namespace wisp::compute {

namespace {
/// In the order of model::RouterKind.
constexpr std::array kRouteKinds{kernels::RouteKind::kSoftmaxTopK, kernels::RouteKind::kSigmoidTopK,
                                 kernels::RouteKind::kTopKSoftmax};
/// Columns of an item that adds vectors.
constexpr std::uint32_t kSliceColumns = 512;

kernels::RouteRule rule_of(const model::RouterSpec& r) {
  return {kRouteKinds[static_cast<std::size_t>(r.kind)],
          r.experts,
          r.top_k,
          r.renormalise,
          r.groups,
          r.kept_groups,
          r.scale};
}
}  // namespace

void Forward::route(std::uint32_t layer, std::uint32_t rows) {
  const model::RouterSpec& r = spec_.router;
  const LayerWeights& w = weights_.layers[layer];
  const kernels::RouteRule rule = rule_of(r);
  products(normed_.data(), {{w.router, router_.data()}}, rows);
  set_.clear();
  member_rows_.clear();
  std::uint16_t* guessed =
      draft_choices_.data() + std::size_t{layer} * ring::kMostDraftedInStep * spec_.router.top_k;
  std::fill(member_of_.begin(), member_of_.end(), -1);
  for (std::size_t row = 0; row < rows; ++row) {
    std::uint32_t* ids = chosen_.data() + row * r.top_k;
    kernels::route(rule, router_.data() + row * r.experts, w.selection.data(), route_scratch_.data(), ids,
                   chosen_weight_.data() + row * r.top_k, k_);
    for (std::uint32_t rank = 0; rank < r.top_k; ++rank) {
      std::int32_t& m = member_of_[ids[rank]];
      if (m < 0) {
        m = static_cast<std::int32_t>(set_.size());
        set_.push_back({static_cast<std::uint16_t>(ids[rank]), 0, 0});
        member_rows_.push_back(0);
      }
      ++member_rows_[static_cast<std::size_t>(m)];
      if (rows_[row].guessed)
        *guessed++ = static_cast<std::uint16_t>(ids[rank]);
      else
        ++set_[static_cast<std::size_t>(m)].rows;
    }
  }
  // Places of the products: grouped by expert, so that an expert reads and writes consecutive rows.
  member_first_.assign(set_.size() + 1, 0);
  for (std::size_t m = 0; m < set_.size(); ++m) member_first_[m + 1] = member_first_[m] + member_rows_[m];
  member_next_.assign(member_first_.begin(), member_first_.end() - 1);
  for (std::size_t i = 0; i < std::size_t{rows} * r.top_k; ++i) {
    const std::uint32_t place = member_next_[static_cast<std::size_t>(member_of_[chosen_[i]])]++;
    product_of_[i] = place;
    place_row_[place] = static_cast<std::uint32_t>(i / r.top_k);
  }
}

bool Forward::moe_ffn(std::uint32_t layer, std::span<Sequence> sequences, ExpertSource& experts,
                      ExpertSource::Cancelled cancelled) {
  const auto rows = static_cast<std::uint32_t>(rows_.size());
  const std::size_t hidden = spec_.hidden;
  route(layer, rows);
  const auto fail = [&](std::uint32_t member, const std::string& why) {
    for (std::uint32_t p = member_first_[member]; p < member_first_[member + 1]; ++p) {
      const Row& row = rows_[place_row_[p]];
      Sequence& s = sequences[row.sequence];
      if (row.guessed)
        s.draft_failed = std::min(s.draft_failed, row.position + s.drafts - s.end());
      else if (s.error.empty())
        s.error = why;
      std::fill_n(product_.begin() + static_cast<std::ptrdiff_t>(p * hidden), hidden, 0.0f);
    }
  };
  // All experts are stored in one form, so a row's input is prepared once for all of its own.
  kernels::WeightView gate;
  gate.format = spec_.expert.gate.format;
  gate.cols = spec_.hidden;
  row_bytes_now_ = has_order() ? kernels::Int8Rows{} : bytes_for(gate, normed_.data(), rows, row_bytes_);
  const auto use = [&](std::span<const ReadyExpert> ready) {
    spans_.enter(Span::kExperts);
    multiply_experts(ready);
    for (const ReadyExpert& e : ready) came_[e.member] = 1;
    spans_.enter(Span::kOther);
  };
  came_.assign(set_.size(), 0);
  bool guessed = !decode_ || rows > kGuessRows || !experts.wants_guesses();
  // Asked only where an expert is missing: until it comes, the loader has more use for the cores.
  const auto waits = [&] {
    pool_.rest();
    if (!std::exchange(guessed, true)) guess_next(layer, experts);
    return cancelled();
  };
  spans_.enter(Span::kOther);
  const std::size_t choices = std::size_t{rows} * spec_.router.top_k;
  experts.choices({chosen_.data(), choices}, {chosen_weight_.data(), choices});
  if (!experts.visit(layer, set_, decode_, use, fail, waits)) return false;
  spans_.enter(Span::kExperts);
  if (spec_.shared.width != 0) {
    mlp(layer, shared_.data(), nullptr);
    if (spec_.shared.gated) products(normed_.data(), {{weights_.layers[layer].mix, mix_.data()}}, rows);
  }
  add_experts();
  return true;
}

void Forward::keep_drafts(std::span<const Sequence> sequences, std::span<const std::uint32_t> accepted,
                          ExpertSource& experts) {
  if (draft_rows_ == 0) return;
  const std::uint32_t top_k = spec_.router.top_k;
  for (std::uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
    if (!spec_.layers[layer].moe) continue;
    const std::uint16_t* row = draft_choices_.data() + std::size_t{layer} * ring::kMostDraftedInStep * top_k;
    set_.clear();
    for (std::size_t s = 0; s < sequences.size(); ++s)
      for (std::uint32_t d = 0; d < sequences[s].drafts; ++d, row += top_k) {
        if (d >= accepted[s]) continue;
        for (std::uint32_t rank = 0; rank < top_k; ++rank) {
          const auto m = std::ranges::find(set_, row[rank], &ring::TouchMember::expert);
          if (m == set_.end())
            set_.push_back({row[rank], 0, 1});
          else
            ++m->rows;
        }
      }
    if (!set_.empty()) experts.kept(layer, set_);
  }
}

void Forward::guess_next(std::uint32_t layer, ExpertSource& experts) {
  const std::uint32_t next = layer + 1;
  if (next >= spec_.layers.size() || !spec_.layers[next].moe) return;
  const LayerWeights& w = weights_.layers[next];
  const kernels::WeightView& router = w.router.weight;
  if (router.order != nullptr) return;
  const auto rows = static_cast<std::uint32_t>(rows_.size());
  const std::uint32_t top_k = spec_.router.top_k;
  const std::uint32_t hidden = spec_.hidden;
  for (std::size_t row = 0; row < rows; ++row) {
    std::copy_n(x_.data() + row * hidden, hidden, guess_x_.data());
    for (std::uint32_t rank = 0; rank < top_k; ++rank) {
      const std::size_t i = row * top_k + rank;
      if (came_[static_cast<std::size_t>(member_of_[chosen_[i]])] == 0) continue;
      k_.accumulate(chosen_weight_[i], product_.data() + product_of_[i] * hidden, guess_x_.data(), hidden,
                    false);
    }
    k_.rms_norm(guess_x_.data(), w.ffn_norm.data(), spec_.norm_eps, hidden, guess_x_.data());
    k_.linear(router, guess_x_.data(), router.cols, 1, guess_scores_.data(), router.rows, 0,
              kernels::tiles_of(router.rows));
    if (!w.router.bias.empty()) k_.add(guess_scores_.data(), w.router.bias.data(), router.rows);
    kernels::route(rule_of(spec_.router), guess_scores_.data(), w.selection.data(), route_scratch_.data(),
                   guess_ids_.data() + row * top_k, guess_weight_.data(), k_);
  }
  guess_.clear();
  for (std::uint32_t rank = 0; rank < top_k; ++rank)
    for (std::size_t row = 0; row < rows; ++row) {
      const std::uint32_t expert = guess_ids_[row * top_k + rank];
      if (std::ranges::find(guess_, expert) == guess_.end()) guess_.push_back(expert);
    }
  experts.guess(next, guess_);
}

void Forward::add_experts() {
  const auto rows = static_cast<std::uint32_t>(rows_.size());
  const std::uint32_t top_k = spec_.router.top_k;
  const std::size_t hidden = spec_.hidden;
  const std::uint32_t slices = (spec_.hidden + kSliceColumns - 1) / kSliceColumns;
  const std::uint64_t cost = std::uint64_t{rows} * hidden * (top_k + 2);
  pool_.run(rows * slices, cost, [&](std::uint32_t item, std::uint32_t) {
    const std::size_t row = item / slices, begin = std::size_t{item % slices} * kSliceColumns;
    const std::size_t n = std::min<std::size_t>(kSliceColumns, hidden - begin), at = row * hidden + begin;
    float* const block = block_.data() + at;
    // In rank order, never in the order of arrival from the drive.
    for (std::uint32_t rank = 0; rank < top_k; ++rank) {
      const std::size_t i = row * top_k + rank;
      k_.accumulate(chosen_weight_[i], product_.data() + product_of_[i] * hidden + begin, block, n,
                    rank == 0);
    }
    if (spec_.shared.width != 0) {
      if (spec_.shared.gated)
        k_.accumulate(kernels::canonical_sigmoid(mix_[row]), shared_.data() + at, block, n, false);
      else
        k_.add(block, shared_.data() + at, n);
    }
    k_.add(x_.data() + at, block, n);
  });
}

bool Forward::has_order() const {
  return spec_.expert.gate.order_offset != 0;
}

void Forward::gather(ExpertJob& job, std::uint32_t at) {
  const std::size_t hidden = spec_.hidden;
  float* const x = gathered_.data() + at * hidden;
  float* const x_up = has_order() ? ordered_.data() + at * hidden : x;
  const auto as_bytes = [&](const kernels::WeightView& w, Int8Buffer& buffer) {
    return fast_ && kernels::takes_int8(w.format) ? buffer.rows(at, job.rows, w.cols) : kernels::Int8Rows{};
  };
  const kernels::Int8Rows bytes = as_bytes(job.weights.gate, bytes_);
  const kernels::Int8Rows up_bytes = has_order() ? as_bytes(job.weights.up, up_bytes_) : bytes;
  for_rows(job.rows, 8 * hidden, [&](std::size_t t) {
    const float* from = normed_.data() + place_row_[job.first + t] * hidden;
    float *const to = x + t * hidden, *const to_up = x_up + t * hidden;
    if (has_order()) {
      kernels::in_order(job.weights.gate.order, spec_.hidden, from, to);
      kernels::in_order(job.weights.up.order, spec_.hidden, from, to_up);
    } else {
      std::copy_n(from, hidden, to);
    }
    const auto quantise = [&](const kernels::WeightView& w, const float* row, const kernels::Int8Rows& out) {
      if (out.codes != nullptr)
        k_.quantise(w.format, row, hidden, 1, spec_.hidden, out.from(static_cast<std::uint32_t>(t)));
    };
    quantise(job.weights.gate, to, bytes);
    if (has_order()) quantise(job.weights.up, to_up, up_bytes);
  });
  job.gate_in = {x, bytes};
  job.up_in = {x_up, up_bytes};
}

void Forward::gated(const ExpertWeights& w, const Input& gate_in, const Input& up_in, std::uint32_t rows,
                    float* gate, float* up, std::uint32_t begin, std::uint32_t end) const {
  const std::uint32_t width = w.gate.rows;
  product(w.gate, gate_in.x, gate_in.bytes, rows, gate, begin, end);
  product(w.up, up_in.x, up_in.bytes, rows, up, begin, end);
  const std::size_t column = std::size_t{begin} * kernels::kTileRows;
  const std::size_t n = std::min<std::size_t>(std::size_t{end} * kernels::kTileRows, width) - column;
  for (std::size_t r = 0; r < rows; ++r) {
    float *const g = gate + r * width + column, *const u = up + r * width + column;
    if (w.gate_bias != nullptr) {
      k_.add(g, w.gate_bias + column, n);
      k_.add(u, w.up_bias + column, n);
    }
    glu(g, u, n);
  }
}

void Forward::multiply_experts(std::span<const ReadyExpert> ready) {
  const std::size_t hidden = spec_.hidden;
  const std::uint32_t width = spec_.moe_width;
  const std::uint32_t up_tiles = kernels::tiles_of(width), down_tiles = kernels::tiles_of(spec_.hidden);
  for (std::size_t done = 0; done < ready.size();) {
    // As many experts at once as the scratch has rows for.
    jobs_.clear();
    std::uint32_t rows = 0, most = 0;
    for (; done < ready.size() && rows + member_rows_[ready[done].member] <= max_rows_; ++done) {
      const std::uint32_t m = ready[done].member;
      ExpertJob job{ExpertWeights::at(spec_.expert, ready[done].extent),
                    member_first_[m],
                    member_rows_[m],
                    rows,
                    {},
                    {}};
      if (job.rows == 1 && !has_order()) {
        const std::uint32_t row = place_row_[job.first];
        job.gate_in = job.up_in = {normed_.data() + row * hidden, row_bytes_now_.from(row)};
      } else {
        gather(job, rows);
      }
      jobs_.push_back(job);
      rows += job.rows;
      most = std::max(most, job.rows);
    }
    const auto n = static_cast<std::uint32_t>(jobs_.size());
    const std::uint64_t tile_cost = std::uint64_t{kernels::kTileRows} * most;  // of a column
    const std::uint32_t up_step = tiles_of_item(up_tiles, n, 2 * hidden * tile_cost),
                        down_step = tiles_of_item(down_tiles, n, width * tile_cost);
    const std::uint32_t up_items = (up_tiles + up_step - 1) / up_step,
                        down_items = (down_tiles + down_step - 1) / down_step;
    const std::uint64_t cost = std::uint64_t{rows} * hidden * width;
    pool_.run(n * up_items, 2 * cost, [&](std::uint32_t i, std::uint32_t) {
      const ExpertJob& j = jobs_[i / up_items];
      const std::uint32_t begin = i % up_items * up_step, end = std::min(up_tiles, begin + up_step);
      const std::size_t at = std::size_t{j.local} * width;
      gated(j.weights, j.gate_in, j.up_in, j.rows, gate_.data() + at, up_.data() + at, begin, end);
    });
    if (has_order()) {  // up_ has done its work
      for (const ExpertJob& j : jobs_)
        for (std::size_t t = j.local; t < j.local + j.rows; ++t)
          kernels::in_order(j.weights.down.order, width, gate_.data() + t * width, up_.data() + t * width);
    }
    const float* inner = (has_order() ? up_ : gate_).data();
    const bool as_bytes = fast_ && kernels::takes_int8(jobs_[0].weights.down.format);
    // Each job's rows are a matrix of their own.
    const auto bytes_of = [&](const ExpertJob& j) {
      return as_bytes ? bytes_.rows(j.local, j.rows, width) : kernels::Int8Rows{};
    };
    if (as_bytes) {
      for_rows(rows, 4 * std::uint64_t{width}, [&](std::size_t r) {
        const auto next = std::ranges::upper_bound(jobs_, r, {}, &ExpertJob::local);
        const ExpertJob& j = *std::prev(next);
        k_.quantise(j.weights.down.format, inner + r * width, width, 1, width,
                    bytes_of(j).from(static_cast<std::uint32_t>(r) - j.local));
      });
    }
    pool_.run(n * down_items, cost, [&](std::uint32_t i, std::uint32_t) {
      const ExpertJob& j = jobs_[i / down_items];
      const std::uint32_t begin = i % down_items * down_step, end = std::min(down_tiles, begin + down_step);
      float* const y = product_.data() + j.first * hidden;
      product(j.weights.down, inner + std::size_t{j.local} * width, bytes_of(j), j.rows, y, begin, end);
      if (j.weights.down_bias == nullptr) return;
      const std::size_t column = std::size_t{begin} * kernels::kTileRows;
      const std::size_t columns = std::min(std::size_t{end} * kernels::kTileRows, hidden) - column;
      for (std::size_t t = 0; t < j.rows; ++t)
        k_.add(y + t * hidden + column, j.weights.down_bias + column, columns);
    });
  }
}

}  // namespace wisp::compute
