#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../compute/model_fixture.hpp"
#include "model/safetensors.hpp"
#include "ring/messages.hpp"
#include "services/speculator/draft_head.hpp"

namespace wisp::speculator::head_testing {

using compute::testing::LoadedModel;
using Ids = std::vector<std::uint32_t>;
using Rows = std::vector<float>;

inline const std::string kData = WISP_TEST_DATA;

/// What the oracle says of one checkpoint.
struct Oracle {
  Ids ids, lengths, chain_ids;              ///< [64], [chains], [chains, 7]
  Rows hidden, logits, rows, chain_logits;  ///< [64, hidden], [63, vocab], [63, hidden], [chains, 7, vocab]

  explicit Oracle(const std::string& name) {
    auto file = model::SafetensorsFile::open(kData + "/draft_heads/" + name + ".safetensors");
    if (!file.ok()) throw std::runtime_error(file.error().text);
    const auto bytes = [&](const std::string& tensor) {
      for (const model::TensorInfo& t : file->header().tensors) {
        if (t.name != tensor) continue;
        std::vector<std::uint8_t> out(t.bytes);
        if (!file->read(t, 0, out).ok()) throw std::runtime_error("unreadable " + tensor);
        return out;
      }
      throw std::runtime_error("no tensor " + tensor);
    };
    for (const auto& [tensor, to] :
         {std::pair{"ids", &ids}, {"lengths", &lengths}, {"chain_ids", &chain_ids}}) {
      const auto raw = bytes(tensor);
      for (std::size_t i = 0; i < raw.size(); i += 8) {
        std::int64_t id;
        std::memcpy(&id, raw.data() + i, 8);
        to->push_back(static_cast<std::uint32_t>(id));
      }
    }
    for (const auto& [tensor, to] : {std::pair{"hidden", &hidden},
                                     {"logits", &logits},
                                     {"rows", &rows},
                                     {"chain_logits", &chain_logits}}) {
      const auto raw = bytes(tensor);
      to->resize(raw.size() / 4);
      std::memcpy(to->data(), raw.data(), raw.size());
    }
  }
};

inline plan::RunPlan plan_of(const LoadedModel& m, std::uint32_t ctx = 0, const std::string& kv = "f32",
                             const std::string& profile = "exact") {
  plan::RunOptions o;
  o.model = m.path;
  o.ctx = ctx;
  o.parallel = 2;
  o.threads = 1;
  o.kv = kv;
  o.profile = profile;
  auto plan = plan::make_plan(m.manifest, o, std::uint64_t{1} << 40);
  if (!plan.ok()) throw std::runtime_error(plan.error().text);
  return std::move(plan).value();
}

inline std::unique_ptr<DraftHead> open_head(const plan::RunPlan& plan, const std::byte* dense = nullptr) {
  auto head = DraftHead::open(plan, dense);
  if (!head.ok()) throw std::runtime_error(head.error().text);
  return std::move(head).value();
}

/// The rows of the model that `head` wants of this sequence, and their first position.
struct Feed {
  std::uint32_t first;
  std::span<const float> rows;
};
inline Feed feed(DraftHead& head, std::uint32_t place, std::span<const std::uint32_t> ids,
                 const Rows& hidden) {
  const std::uint32_t first = head.wants(place, ids);
  const std::size_t width = head.spec().hidden;
  return {first, std::span(hidden).subspan(first * width, (ids.size() - 1 - first) * width)};
}

/// What `head` proposes about `ids`, fed with what it wants.
inline Ids proposed(DraftHead& head, std::uint32_t place, std::span<const std::uint32_t> ids,
                    const Rows& hidden, std::uint32_t k = ring::kMostDrafted) {
  Ids out(k);
  std::uint32_t n = 0;
  do {
    const Feed f = feed(head, place, ids, hidden);
    n = head.propose(place, ids, f.first, f.rows, out);
  } while (head.has_more(place));
  out.resize(n);
  return out;
}

/// The largest difference, in parts of the largest magnitude of `want`.
inline float difference(std::span<const float> got, std::span<const float> want) {
  float off = 0, largest = 0;
  EXPECT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    off = std::max(off, std::abs(got[i] - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  return off / largest;
}

inline Rows last_logits(const DraftHead& head) {
  const auto l = head.logits();
  return {l.begin(), l.end()};
}

}  // namespace wisp::speculator::head_testing
