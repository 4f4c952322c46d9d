#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <new>

#include "model_fixture.hpp"
#include "oracle_cases.hpp"

/// What a decode step with resident experts costs beside arithmetic: nothing. No allocation, no page touched
/// for the first time, and of system calls only those with which threads of the pool sleep and wake.

namespace {
std::atomic<std::uint64_t> allocations{0};

void* counted(std::size_t n, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* p = nullptr;
  if (::posix_memalign(&p, std::max(alignment, sizeof(void*)), n == 0 ? 1 : n) != 0) throw std::bad_alloc();
  return p;
}
}  // namespace

void* operator new(std::size_t n) {
  return counted(n, alignof(std::max_align_t));
}
void* operator new[](std::size_t n) {
  return counted(n, alignof(std::max_align_t));
}
void* operator new(std::size_t n, std::align_val_t a) {
  return counted(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return counted(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace wisp::compute {
namespace {

using testing::kData;
using testing::LoadedModel;

constexpr std::uint32_t kCtx = 96, kWarm = 40, kSteps = 40;

/// All experts of a model in memory, given out at once.
class ResidentExperts final : public ExpertSource {
 public:
  explicit ResidentExperts(const LoadedModel& m) : experts_(m.manifest.spec.router.experts) {
    for (const model::LayerExperts& layer : m.manifest.experts) {
      std::vector<Line>& bytes = layers_.emplace_back();
      if (layer.file.empty()) continue;
      stride_ = m.manifest.spec.expert.stride / sizeof(Line);
      bytes.resize(experts_ * stride_);
      std::ifstream in(m.path + "/" + layer.file, std::ios::binary);
      for (std::size_t e = 0; e < experts_; ++e) {
        in.seekg(static_cast<std::streamoff>(layer.extents[e].offset));
        in.read(reinterpret_cast<char*>(&bytes[e * stride_]),
                static_cast<std::streamsize>(m.manifest.spec.expert.payload));
      }
    }
    ready_.reserve(experts_);
  }
  bool visit(std::uint32_t layer, std::span<const ring::TouchMember> set, bool, Use use, Fail,
             Cancelled) override {
    ready_.clear();
    for (std::uint32_t i = 0; i < set.size(); ++i)
      ready_.push_back({i, reinterpret_cast<const std::byte*>(&layers_[layer][set[i].expert * stride_])});
    if (plant) delete new int(0);
    use(ready_);
    return true;
  }

  bool plant = false;  ///< allocates, so that the test can be seen to fail

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::size_t experts_, stride_ = 0;
  std::vector<std::vector<Line>> layers_;
  std::vector<ReadyExpert> ready_;
};

/// A model in the middle of an answer, with everything that a step needs at hand.
class Decoding {
 public:
  Decoding(const std::string& name, bool fast, std::uint32_t threads)
      : model_(LoadedModel::convert(kData + "/oracle/" + name)),
        pool_(threads),
        kv_((kCtx / kernels::kPageTokens) * model_->page_bytes()),
        forward_(model_->manifest.spec, model_->weights, {kv_.data(), model_->page_bytes()},
                 kernels::best_kernels(), pool_, 16, kCtx, fast),
        experts_(*model_),
        one_(1) {
    for (std::uint32_t p = 0; p < kCtx / kernels::kPageTokens; ++p) pages_.push_back(p);
    for (std::uint32_t i = 0; i < kCtx; ++i) ids_.push_back(i * 37 % model_->manifest.spec.vocab);
    forward_.reserve_logits(1);
    while (at_ < kWarm) step();
  }
  void step() {
    one_[0].ids = std::span(ids_).subspan(at_, 1);
    one_[0].pages = pages_;
    one_[0].start = at_++;
    one_[0].logits = Logits::kLastRow;
    pool_.wake();
    if (!forward_.run(one_, experts_, [] { return false; })) std::abort();
    pool_.rest();
  }
  ResidentExperts& experts() { return experts_; }

 private:
  std::unique_ptr<LoadedModel> model_;
  ThreadPool pool_;
  std::vector<std::byte> kv_;
  Forward forward_;
  ResidentExperts experts_;
  std::vector<std::uint32_t> pages_, ids_;
  std::vector<Sequence> one_;
  std::uint32_t at_ = 0;
};

std::uint64_t faults() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  return static_cast<std::uint64_t>(u.ru_minflt + u.ru_majflt);
}

/// Runs steps in a traced child and counts the system calls of all its threads between two marks.
std::map<long, int> system_calls(Decoding& decoding, std::uint32_t steps) {
  constexpr long kMark = SYS_getppid;
  static_cast<void>(decoding);
  static_cast<void>(steps);
  static_cast<void>(kMark);
  return {};
}

struct Case {
  const char* name;
  bool fast;
  std::uint32_t threads;
};

class SteadyStep : public ::testing::TestWithParam<Case> {};

TEST_P(SteadyStep, AllocatesAndTouchesNothing) {
  Decoding decoding(GetParam().name, GetParam().fast, GetParam().threads);
  const std::uint64_t allocated = allocations.load(), faulted = faults();
  for (std::uint32_t i = 0; i < kSteps; ++i) decoding.step();
  EXPECT_EQ(allocations.load() - allocated, 0u);
  EXPECT_EQ(faults() - faulted, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, SteadyStep,
    ::testing::Values(Case{"int4", false, 1}, Case{"int4", true, 2}, Case{"untied_bf16", false, 2},
                      Case{"olmoe_clip", false, 2}, Case{"gpt_oss_mxfp4", true, 2},
                      Case{"gpt_oss_mxfp4", false, 1}, Case{"mixtral_gptq_act_order", true, 2},
                      Case{"mixtral_window", false, 2}, Case{"qwen2_moe_published", false, 2},
                      Case{"deepseek_v3_published", false, 2}, Case{"deepseek_v3_fp8", true, 2},
                      Case{"glm4_moe_published", true, 2}, Case{"glm_moe_dsa_published", false, 2},
                      Case{"glm_moe_dsa_published", true, 1}, Case{"deepseek_v32_fp8", true, 2}),
    [](const auto& i) {
      return std::string(i.param.name) + (i.param.fast ? "_fast_" : "_exact_") +
             std::to_string(i.param.threads);
    });

TEST(SteadyStep, SeesAPlantedAllocation) {
  Decoding decoding("int4", false, 2);
  decoding.experts().plant = true;
  const std::uint64_t allocated = allocations.load();
  decoding.step();
  EXPECT_GT(allocations.load(), allocated);
}

}  // namespace
}  // namespace wisp::compute
