#include "services/eval/score.hpp"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>

#include "model/safetensors.hpp"
#include "plan/cpus.hpp"
#include "services/compute/forward.hpp"
#include "services/eval/file_experts.hpp"

namespace wisp::eval {

using compute::Forward;
using compute::KvPages;
using compute::Logits;
using compute::Sequence;
using compute::ThreadPool;
using compute::Weights;

namespace {

constexpr std::uint32_t kRows = 64;

/// One profile at work on a window.
class Engine {
 public:
  Engine(const model::Manifest& m, const Weights& weights, ThreadPool& pool, std::uint32_t window, bool fast,
         kernels::KvFormat kv)
      : page_bytes_(m.spec.kv_page_bytes(kv)) {
    const std::uint32_t pages = (window + kernels::kPageTokens - 1) / kernels::kPageTokens;
    for (std::uint32_t p = 0; p < pages; ++p) pages_.push_back(p);
    kv_.resize(pages * page_bytes_);
    forward_ = std::make_unique<Forward>(m.spec, weights, KvPages{kv_.data(), page_bytes_, kv},
                                         kernels::best_kernels(), pool, kRows, window, fast);
  }

  /// Logits [count, vocab] of rows [start, start + count) of a window.
  Result<std::span<const float>> rows(std::span<const std::uint32_t> window, std::uint32_t start,
                                      std::uint32_t count, compute::ExpertSource& experts) {
    std::vector<Sequence> one(1);
    one[0].ids = window.subspan(start, count);
    one[0].pages = pages_;
    one[0].start = start;
    one[0].logits = Logits::kAllRows;
    static_cast<void>(forward_->run(one, experts, [] { return false; }));
    if (!one[0].error.empty()) return io_error(one[0].error);
    return forward_->logits(0);
  }

 private:
  std::uint64_t page_bytes_;
  std::vector<std::uint32_t> pages_;
  std::vector<std::byte> kv_;
  std::unique_ptr<Forward> forward_;
};

/// ln of the sum of e^x.
double log_sum(std::span<const float> x) {
  const auto most = static_cast<double>(*std::max_element(x.begin(), x.end()));
  double sum = 0.0;
  for (const float v : x) sum += std::exp(static_cast<double>(v) - most);
  return most + std::log(sum);
}

void compare(std::span<const float> exact, std::span<const float> other, Score& score) {
  const double of_exact = log_sum(exact), of_other = log_sum(other);
  for (std::size_t v = 0; v < exact.size(); ++v) {
    const double a = static_cast<double>(exact[v]) - of_exact, b = static_cast<double>(other[v]) - of_other;
    score.divergence += std::exp(a) * (a - b);
    score.largest_difference = std::max(
        score.largest_difference, std::abs(static_cast<double>(exact[v]) - static_cast<double>(other[v])));
  }
  const auto first = [](std::span<const float> x) {
    return std::max_element(x.begin(), x.end()) - x.begin();
  };
  score.same_first += first(exact) == first(other) ? 1 : 0;
}

struct alignas(64) Line {
  std::byte bytes[64];
};

Result<std::vector<Line>> read_dense(const std::string& folder, const model::Manifest& m) {
  std::vector<Line> dense(m.dense_bytes / sizeof(Line) + 1);
  const std::string path = folder + "/" + m.dense_file;
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return io_error(path + ": " + std::strerror(errno));
  WISP_TRY(model::read_exactly(fd.get(), m.dense_file_offset,
                               {reinterpret_cast<std::uint8_t*>(dense.data()), m.dense_bytes}, path));
  const auto* bytes = reinterpret_cast<const std::byte*>(dense.data());
  for (const auto& [name, t] : m.dense)
    if (XXH3_64bits(bytes + t.offset, t.bytes) != t.checksum)
      return corrupt(path + ": tensor " + name +
                     " does not match its checksum; check with `wisp verify` and convert the model again");
  return dense;
}

Result<Score> score_in_memory(const ScoreOptions& options, const std::vector<ScoredLine>& lines,
                              const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  WISP_ASSIGN(const model::Manifest m, model::load_manifest(options.model));
  if (options.window > m.spec.max_positions && options.window != kDefaultWindow)
    return invalid("--window is " + std::to_string(options.window) + ", but the model has " +
                   std::to_string(m.spec.max_positions) + " positions");
  std::uint64_t total = 0;
  std::size_t longest = 2;
  for (const ScoredLine& line : lines) {
    total += line.ids.size();
    longest = std::max(longest, line.ids.size());
    for (const std::uint32_t id : line.ids)
      if (id >= m.spec.vocab)
        return invalid("line " + std::to_string(line.number) + ": id " + std::to_string(id) +
                       " is outside of the vocabulary of " + std::to_string(m.spec.vocab));
  }
  WISP_ASSIGN(const std::vector<Line> dense, read_dense(options.model, m));
  WISP_ASSIGN(const Weights weights,
              Weights::bind(m, reinterpret_cast<const std::byte*>(dense.data()), m.dense_bytes));
  WISP_ASSIGN(FileExperts experts, FileExperts::open(options.model, m));
  ThreadPool pool(options.threads, options.threads <= plan::usable_cores());
  // No more positions than there are tokens for.
  const auto window_size =
      static_cast<std::uint32_t>(std::min<std::size_t>({options.window, m.spec.max_positions, longest}));
  const std::string profile = options.profile == "auto" ? m.profile : options.profile;
  const bool fast = profile == "fast";
  Engine engine(m, weights, pool, window_size, fast, options.kv);
  std::unique_ptr<Engine> exact;
  if (options.against_exact)
    exact = std::make_unique<Engine>(m, weights, pool, window_size, false, kernels::KvFormat::kF32);

  Score out;
  out.profile = profile;
  std::uint64_t done = 0;
  const std::size_t vocab = m.spec.vocab;
  for (const auto& [number, line] : lines) {
    for (std::size_t begin = 0; begin < line.size(); begin += window_size) {
      const auto window =
          std::span(line).subspan(begin).first(std::min<std::size_t>(window_size, line.size() - begin));
      // The last token predicts nothing.
      const auto rows = static_cast<std::uint32_t>(window.size() - 1);
      for (std::uint32_t at = 0; at < rows; at += kRows) {
        const std::uint32_t count = std::min(kRows, rows - at);
        WISP_ASSIGN(const std::span<const float> logits, engine.rows(window, at, count, experts));
        std::span<const float> reference;
        if (exact) {
          WISP_ASSIGN(reference, exact->rows(window, at, count, experts));
        }
        for (std::uint32_t r = 0; r < count; ++r) {
          const auto row = logits.subspan(r * vocab, vocab);
          const double nats = log_sum(row) - static_cast<double>(row[window[at + r + 1]]);
          if (!std::isfinite(nats))
            return invalid("line " + std::to_string(number) + ": the logits at position " +
                           std::to_string(begin + at + r) +
                           " are not all numbers: the model's weights are damaged or too large");
          out.nats += nats;
          if (!exact) continue;
          const auto other = reference.subspan(r * vocab, vocab);
          out.exact_nats += log_sum(other) - static_cast<double>(other[window[at + r + 1]]);
          compare(other, row, out);
        }
        out.tokens += count;
        progress(done + at + count, total);
      }
      done += window.size();
    }
  }
  return out;
}

}  // namespace

Result<Score> score(const ScoreOptions& options, const std::vector<ScoredLine>& lines,
                    const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  try {
    return score_in_memory(options, lines, progress);
  } catch (const std::bad_alloc&) {
    return exhausted(options.model + ": its dense part and a window of " + std::to_string(options.window) +
                     " positions do not fit in memory; give a smaller --window, or more memory");
  }
}

}  // namespace wisp::eval
