#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <new>
#include <regex>

#include "../counted_new.hpp"
#include "../page_faults.hpp"
#include "model_fixture.hpp"
#include "oracle_cases.hpp"
#include "services/compute/logprobs.hpp"
#include "services/compute/penalties.hpp"
#include "shm/journal.hpp"
#include "wisp/kernels/kernels.hpp"

/// What a decode step with resident experts costs beside arithmetic: nothing. No allocation, no page touched
/// for the first time, and of system calls only those with which threads of the pool sleep and wake.

namespace wisp::compute {
namespace {

using testing::kData;
using testing::LoadedModel;
using wisp::testing::allocations;
using wisp::testing::fewest_faults;
using wisp::testing::page_faults;

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
    if (plant_allocation) ::operator delete(::operator new(1));
    if (plant_call) ::syscall(SYS_gettid);
    if (!plant_page.empty()) plant_page[plant_page.size() / 2] = std::byte{1};
    use(ready_);
    return true;
  }

  // So that the tests can be seen to fail.
  bool plant_allocation = false, plant_call = false;
  std::span<std::byte> plant_page;  // several pages that nobody has touched

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
    pool_.share_everything();
    // Each thread takes one item: then all of them have begun their lives.
    std::atomic<std::uint32_t> here{0};
    pool_.run(threads, 1, [&](std::uint32_t, std::uint32_t) {
      here.fetch_add(1);
      while (here.load() != threads) ::sched_yield();
    });
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

constexpr long kMark = SYS_getppid;

/// Runs `child`, which calls kMark twice, in a traced process; counts the system calls of all its threads
/// from the first to the second, by number.
std::map<std::uint64_t, int> system_calls(FunctionRef<void()> child) {
  const pid_t first = ::fork();
  if (first == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    child();
    ::_exit(0);
  }
  std::map<std::uint64_t, int> calls;
  int marks = 0, status = 0;
  bool traced = false;
  for (pid_t pid; (pid = ::waitpid(-1, &status, __WALL)) > 0;) {
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (pid == first && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) ADD_FAILURE() << "the child died";
      continue;
    }
    if (!traced)
      ::ptrace(PTRACE_SETOPTIONS, pid, nullptr,
               PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
    traced = true;
    if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
      __ptrace_syscall_info info{};
      ::ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info);
      if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        if (info.entry.nr == kMark)
          ++marks;
        else if (marks == 1)
          ++calls[info.entry.nr];
      }
    }
    ::ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr);
  }
  EXPECT_EQ(marks, 2);
  return calls;
}

struct Case {
  const char* name;
  bool fast;
  std::uint32_t threads;
};

class SteadyStep : public ::testing::TestWithParam<Case> {};

TEST_P(SteadyStep, AllocatesAndTouchesNothing) {
  EXPECT_EQ(fewest_faults([] {
              Decoding decoding(GetParam().name, GetParam().fast, GetParam().threads);
              const std::uint64_t allocated = allocations(), faulted = page_faults();
              for (std::uint32_t i = 0; i < kSteps; ++i) decoding.step();
              EXPECT_EQ(allocations() - allocated, 0u);
              return page_faults() - faulted;
            }),
            0u);
}

TEST_P(SteadyStep, CallsTheKernelOnlyToSleep) {
  auto calls = system_calls([&] {
    Decoding decoding(GetParam().name, GetParam().fast, GetParam().threads);
    ::syscall(kMark);
    for (std::uint32_t i = 0; i < kSteps; ++i) decoding.step();
    ::syscall(kMark);
  });
  if (GetParam().threads > 1) calls.erase(SYS_futex);
  for (const auto& [number, times] : calls) ADD_FAILURE() << times << " times system call " << number;
}

INSTANTIATE_TEST_SUITE_P(
    Forms, SteadyStep,
    ::testing::Values(Case{"../pocket-dictionary", false, 2}, Case{"../pocket-dictionary", true, 2},
                      Case{"../pocket-dictionary", true, 1}, Case{"int4", false, 1}, Case{"int4", true, 2},
                      Case{"untied_bf16", false, 2}, Case{"olmoe_clip", false, 2},
                      Case{"gpt_oss_mxfp4", true, 2}, Case{"gpt_oss_mxfp4", false, 1},
                      Case{"mixtral_gptq_act_order", true, 2}, Case{"mixtral_window", false, 2},
                      Case{"qwen2_moe_published", false, 2}, Case{"deepseek_v3_published", false, 2},
                      Case{"deepseek_v3_fp8", true, 2}, Case{"glm4_moe_published", true, 2},
                      Case{"glm_moe_dsa_published", false, 2}, Case{"glm_moe_dsa_published", true, 1},
                      Case{"deepseek_v32_fp8", true, 2}, Case{"../pocket-dictionary-draft", false, 1},
                      Case{"llama_scaled", false, 2}, Case{"mistral_window", false, 2}),
    [](const auto& i) {
      const std::string name = i.param.name;
      return std::regex_replace(name, std::regex("^[./]+|-"), "") + (i.param.fast ? "_fast_" : "_exact_") +
             std::to_string(i.param.threads);
    });

TEST(SteadyStep, LogprobsAllocateNothing) {
  constexpr std::uint32_t kVocab = 5000, kTokens = 8;
  Logprobs logprobs;
  logprobs.reserve(kVocab);
  std::vector<std::uint32_t> told;
  told.reserve(kTokens * std::size_t{shm::logprob_words(1 + shm::kMostTopLogprobs)});
  std::vector<float> logits(kVocab);
  for (std::uint32_t t = 0; t < kVocab; ++t) logits[t] = static_cast<float>(t * 7919 % kVocab) / 300.0f;
  static_cast<void>(kernels::best_kernels());  // looks at the machine the first time
  const std::uint64_t allocated = allocations();
  for (std::uint32_t n = 0; n < kTokens; ++n) logprobs.tell(logits, n, 1 + shm::kMostTopLogprobs, told);
  EXPECT_EQ(allocations(), allocated);
}

TEST(SteadyStep, PenaltiesAllocateNothing) {
  constexpr std::uint32_t kVocab = 500;
  Penalties penalties;
  penalties.reserve(kVocab, kCtx);
  shm::RequestParams params;
  params.presence_penalty = 1;
  const std::vector<float> logits(kVocab);
  const std::uint64_t allocated = allocations();
  for (std::uint32_t length = 1; length < kCtx; ++length) {
    const auto text = penalties.text(length);
    for (std::uint32_t i = 0; i < length; ++i) text[i] = (i * 37 + length) % kVocab;
    penalties.count(length / 2);
    penalties.add(length);
    static_cast<void>(penalties.apply(logits, params));
  }
  EXPECT_EQ(allocations(), allocated);
}

TEST(SteadyStep, SeesAPlantedAllocation) {
  Decoding decoding("int4", false, 2);
  decoding.experts().plant_allocation = true;
  const std::uint64_t allocated = allocations();
  decoding.step();
  EXPECT_GT(allocations(), allocated);
}

TEST(SteadyStep, SeesAPlantedPage) {
  // Once in memory that is mapped anew, and once in the program's own.
  static std::byte own[1 << 16];
  for (const std::size_t bytes : {std::size_t{1} << 20, sizeof own}) {
    EXPECT_GT(fewest_faults([&] {
                Decoding decoding("int4", false, 2);
                const std::unique_ptr<void, decltype(&std::free)> pages(std::malloc(bytes), &std::free);
                decoding.experts().plant_page = {
                    bytes == sizeof own ? own : static_cast<std::byte*>(pages.get()), bytes};
                const std::uint64_t faulted = page_faults();
                for (std::uint32_t i = 0; i < kSteps; ++i) decoding.step();
                return page_faults() - faulted;
              }),
              0u)
        << bytes;
  }
}

TEST(SteadyStep, SeesAPlantedSystemCall) {
  const auto calls = system_calls([] {
    Decoding decoding("int4", false, 1);
    ::syscall(kMark);
    decoding.experts().plant_call = true;
    decoding.step();
    ::syscall(kMark);
  });
  EXPECT_EQ(calls.count(SYS_gettid), 1u);
}

}  // namespace
}  // namespace wisp::compute
