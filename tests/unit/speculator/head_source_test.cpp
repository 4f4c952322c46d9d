#include "services/speculator/head_source.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "../router/journal_memory.hpp"
#include "draft_head_fixture.hpp"
#include "wisp/kernels/number.hpp"

/// The head fed from KV pages and journal, beside the same head that is handed its rows.
namespace wisp::speculator {
namespace {

using namespace head_testing;

constexpr std::uint32_t kRecord = 3, kKvGeneration = 5;
constexpr std::uint64_t kRequest = 77;

struct Rig {
  Rig()
      : model(LoadedModel::convert(kData + "/oracle/glm4_moe_published")),
        oracle("glm4_moe_published"),
        plan(plan_of(*model, 512)),
        journal(plan.records, plan.ctx) {
    // A long sequence of the rows that there are.
    for (std::size_t i = 0; i < 400; ++i) {
      const std::size_t from = i * 7 % oracle.ids.size();
      ids.push_back(oracle.ids[from]);
      for (std::size_t k = 0; k < width(); ++k)
        rows.push_back(kernels::bf16_to_float(kernels::float_to_bf16(oracle.hidden[from * width() + k])));
    }
    kv.resize(shm::kv_size(plan.kv_pages, plan.kv_page_bytes) + 4096);
    void* aligned = kv.data();
    std::size_t room = kv.size();
    std::align(4096, kv.size() - 4096, aligned, room);
    shm::init_kv(aligned, plan.kv_pages, 0, plan.kv_page_bytes, 1, kKvGeneration);
    at.plan = plan;
    at.dense = model->dense.data();
    at.kv = static_cast<shm::Kv*>(aligned);
    at.journal = journal.get();
    EXPECT_TRUE(writer.attach(journal.get(), plan.kv_pages, kKvGeneration).empty());
    shm::RequestParams p;
    p.prompt_tokens = 300;
    p.max_tokens = 100;
    writer.open(kRecord, kRequest, p, std::span(ids).first(300), 1);
    for (std::uint32_t i = 0; i < plan.kv_pages; ++i) pages.push_back((i * 5 + 2) % plan.kv_pages);
    writer.admit(kRecord, std::span(pages).first(26));
    for (std::uint32_t i = 0; i < ids.size(); ++i)
      for (std::size_t k = 0; k < width(); ++k) {
        const std::uint16_t half = kernels::float_to_bf16(rows[i * width() + k]);
        std::memcpy(at.kv->page(pages[i / 16]) + plan.hidden_at() + (i % 16 * width() + k) * 2, &half, 2);
      }
    source = HeadSource::open(at).value();
  }
  std::size_t width() const { return model->manifest.spec.hidden; }
  shm::JournalRecord& record() { return *journal.get()->record(kRecord); }
  void computed(std::uint32_t rows_there) { record().kv_len.store(rows_there); }

  Ids ask(std::size_t n, std::uint64_t request = kRequest) {
    Ids out(ring::kMostDrafted);
    std::uint32_t count = 0, calls = 0;
    do {
      count = source->propose(kRecord, request, std::span(ids).first(n), out);
      EXPECT_LT(++calls, 100u);
    } while (count == 0 && source->has_more(kRecord));
    out.resize(count);
    return out;
  }
  Ids want(std::size_t n) const {
    return proposed(*open_head(plan, model->dense.data()), 0, std::span(ids).first(n), rows);
  }

  std::unique_ptr<LoadedModel> model;
  Oracle oracle;
  plan::RunPlan plan;
  router::testing::JournalMemory journal;
  router::JournalWriter writer;
  std::vector<std::byte> kv;
  std::vector<std::uint32_t> pages;
  Ids ids;
  Rows rows;
  service::Attachment at;
  std::unique_ptr<HeadSource> source;
};

TEST(HeadSource, ProposesWhatTheRowsOfThePagesGive) {
  Rig rig;
  ASSERT_NE(rig.plan.head_bytes, 0u);
  for (const std::uint32_t n : {300u, 301u, 305u, 306u, 321u, 390u}) {
    rig.computed(n - 1);
    EXPECT_EQ(rig.ask(n), rig.want(n)) << n;
  }
  // A new life knows nothing and asks nobody.
  rig.source = HeadSource::open(rig.at).value();
  EXPECT_EQ(rig.ask(390), rig.want(390));
}

TEST(HeadSource, SaysNothingBeforeTheRowsAreThere) {
  Rig rig;
  rig.computed(0);
  EXPECT_TRUE(rig.ask(300).empty());
  rig.computed(120);
  EXPECT_TRUE(rig.ask(300).empty());
  rig.computed(298);
  EXPECT_TRUE(rig.ask(300).empty()) << "the last row but one is missing";
  rig.computed(299);
  EXPECT_EQ(rig.ask(300), rig.want(300));
}

TEST(HeadSource, TakesNoRowsOfAnother) {
  Rig rig;
  rig.computed(299);
  EXPECT_TRUE(rig.ask(300, kRequest + 1).empty()) << "another request lives there";
  shm::JournalRecord& r = rig.record();
  const auto refused = [&](const char* what) {
    rig.source->forget(kRecord);
    EXPECT_TRUE(rig.ask(300).empty()) << what;
  };
  r.generation.fetch_add(1);
  refused("it is being opened");
  r.generation.fetch_add(1);
  r.kv_generation.store(kKvGeneration - 1);
  refused("rows of an earlier region");
  r.kv_generation.store(kKvGeneration);
  r.admitted.store(0);
  refused("it has no pages yet");
  r.admitted.store(1);
  r.page_count = 18;
  refused("too few pages");
  r.page_count = UINT32_MAX;
  refused("more pages than a record has");
  r.page_count = 26;
  std::uint32_t& page = rig.journal.get()->pages(&r)[3];
  page = rig.plan.kv_pages;
  refused("a page that is none");
  page = rig.pages[3];
  const std::uint64_t commit = r.commit.load();
  r.commit.store(shm::CommitWord{1, shm::Finish::kLength, 0}.pack());
  refused("it has ended");
  r.commit.store(commit);
  rig.source->forget(kRecord);
  EXPECT_EQ(rig.ask(300), rig.want(300));
}

TEST(HeadSource, RefusesAModelThatChanged) {
  Rig rig;
  rig.at.plan.head_bytes += 4096;
  const auto changed = HeadSource::open(rig.at);
  ASSERT_FALSE(changed.ok());
  EXPECT_NE(changed.error().text.find("changed on disk"), std::string::npos);
}

}  // namespace
}  // namespace wisp::speculator
