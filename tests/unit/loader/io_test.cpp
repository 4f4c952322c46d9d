#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>

#include "fault_backend.hpp"
#include "rig.hpp"
#include "services/loader/read_queue.hpp"
#include "shm/life.hpp"

namespace wisp::loader {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Page-aligned memory in place of a slab.
struct Memory {
  explicit Memory(std::size_t n) : bytes(n), data(static_cast<std::byte*>(std::aligned_alloc(4096, n))) {
    std::memset(data, 0, n);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { std::free(data); }
  std::size_t bytes;
  std::byte* data;
};

std::byte pattern(std::uint64_t at) {
  return static_cast<std::byte>((at * 2654435761u) >> 13);
}

class IoTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::ofstream out(path(), std::ios::binary);
    std::string content(kFile, '\0');
    for (std::uint64_t i = 0; i < kFile; ++i) content[i] = static_cast<char>(pattern(i));
    out << content;
    out.close();
    auto file = open_model_file(path());
    ASSERT_TRUE(file.ok()) << file.error().text;
    file_ = std::move(*file);
  }
  std::string path() const { return dir_.path + "/file"; }
  shm::Desk& desk() { return *desk_; }

  /// The backend of this parameter under a FaultBackend, or nullptr where the kernel refuses io_uring.
  std::unique_ptr<FaultBackend> backend(Fd tombstone = {}) {
    BackendSetup setup{GetParam(), std::move(tombstone), {memory_.data, memory_.bytes}, 65536, nullptr, 1, 1,
                       true};
    auto made = GetParam() == "uring" ? make_uring_backend(setup) : make_pread_backend(setup);
    if (!made.ok()) return nullptr;
    return std::make_unique<FaultBackend>(std::move(*made));
  }
  std::vector<ExtentDone> run(ReadQueue& queue, std::size_t extents, FaultBackend& b) {
    std::vector<ExtentDone> all;
    const std::uint64_t end = shm::monotonic_now() + 20'000'000'000ULL;
    while (all.size() < extents && shm::monotonic_now() < end) {
      queue.pump();
      pollfd p{b.poll_fd(), POLLIN, 0};
      if (!b.ready() && !queue.has_done() && queue.in_flight() > 0) ::poll(&p, 1, 100);
      queue.reap();
      while (auto d = queue.take_done()) all.push_back(std::move(*d));
    }
    EXPECT_EQ(all.size(), extents);
    return all;
  }
  void expect_bytes(std::uint64_t at, std::uint64_t n) const {
    for (std::uint64_t i = 0; i < n; ++i)
      if (memory_.data[at + i] != pattern(at + i)) {
        ADD_FAILURE() << "byte " << at + i << " is wrong";
        return;
      }
  }

  static constexpr std::uint64_t kFile = 12 * kMiB;
  ScratchDir dir_;
  Memory memory_{kFile + kMiB};
  std::unique_ptr<shm::Desk> desk_ = std::make_unique<shm::Desk>();
  ModelFile file_;
};

#define NEED_BACKEND(b) \
  if (!(b)) GTEST_SKIP() << "io_uring is refused here"

TEST_P(IoTest, ReadsExtentsWithFewInFlight) {
  auto b = backend();
  NEED_BACKEND(b);
  ReadQueue queue(*b, desk());
  const std::uint64_t sizes[] = {4096, 5 * kMiB, 65536, 3 * kMiB, 8192, 2 * kMiB};
  std::uint64_t at = 0, tag = 0;
  for (const std::uint64_t n : sizes) {
    queue.add({&file_, at, n, memory_.data + at, tag++});
    at += n;
  }
  EXPECT_FALSE(queue.has_room());
  for (const auto& d : run(queue, std::size(sizes), *b)) EXPECT_FALSE(d.error) << d.error->text;
  EXPECT_TRUE(queue.idle());
  EXPECT_TRUE(queue.has_room());
  expect_bytes(0, at);
  EXPECT_LE(b->most_bytes_in_flight, 4 * kMiB);
  EXPECT_EQ(desk().get(stats::Counter::kDeviceBytesRead), at);
  EXPECT_EQ(desk().get(stats::Counter::kReadRetries), 0u);
}

TEST_P(IoTest, EndOfFileIsAnErrorThatNamesFileAndOffset) {
  auto b = backend();
  NEED_BACKEND(b);
  ASSERT_EQ(::truncate(path().c_str(), kMiB + 8192), 0);
  ReadQueue queue(*b, desk());
  queue.add({&file_, 0, 65536, memory_.data, 0});
  queue.add({&file_, kMiB, 65536, memory_.data + kMiB, 1});
  queue.add({&file_, 65536, 65536, memory_.data + 65536, 2});
  for (const auto& d : run(queue, 3, *b)) {
    ASSERT_EQ(d.error.has_value(), d.tag == 1);
    if (!d.error) continue;
    EXPECT_NE(d.error->text.find(path()), std::string::npos);
    EXPECT_NE(d.error->text.find("offset 1056768"), std::string::npos) << d.error->text;
  }
  expect_bytes(0, 131072);
}

TEST_P(IoTest, ShortReadsGoOnAtWholeBlocks) {
  auto b = backend();
  NEED_BACKEND(b);
  ReadQueue queue(*b, desk());
  std::uint64_t reads = 0;
  b->spoil = [&](const Read& r, std::int64_t n) -> std::int64_t {
    EXPECT_EQ(r.offset % 4096, 0u);
    EXPECT_EQ(r.bytes % 4096, 0u);
    return ++reads < 5 && n > 8192 ? 8192 + 1000 : n;
  };
  queue.add({&file_, 0, 65536, memory_.data, 0});
  const auto done = run(queue, 1, *b);
  EXPECT_FALSE(done[0].error);
  expect_bytes(0, 65536);
  EXPECT_EQ(desk().get(stats::Counter::kReadRetries), 4u);
}

TEST_P(IoTest, ReadsWithoutProgressEnd) {
  auto b = backend();
  NEED_BACKEND(b);
  ReadQueue queue(*b, desk());
  b->spoil = [](const Read&, std::int64_t) -> std::int64_t { return 100; };
  if (!file_.direct) GTEST_SKIP() << "buffered reads progress by bytes";
  queue.add({&file_, 0, 65536, memory_.data, 0});
  const auto done = run(queue, 1, *b);
  ASSERT_TRUE(done[0].error);
  EXPECT_NE(done[0].error->text.find("no progress"), std::string::npos);
}

TEST_P(IoTest, IoErrorIsRetriedOnceThenFails) {
  auto b = backend();
  NEED_BACKEND(b);
  ReadQueue queue(*b, desk());
  int bad_once = 1;
  b->spoil = [&](const Read& r, std::int64_t n) -> std::int64_t {
    if (r.offset == 0 && bad_once-- > 0) return -EIO;
    return r.offset >= kMiB && r.offset < 6 * kMiB ? -EIO : n;
  };
  queue.add({&file_, 0, 65536, memory_.data, 0});
  queue.add({&file_, kMiB, 5 * kMiB, memory_.data + kMiB, 1});
  queue.add({&file_, 8 * kMiB, kMiB, memory_.data + 8 * kMiB, 2});
  for (const auto& d : run(queue, 3, *b)) EXPECT_EQ(d.error.has_value(), d.tag == 1);
  EXPECT_TRUE(queue.idle());
  expect_bytes(0, 65536);
  expect_bytes(8 * kMiB, kMiB);
}

TEST_P(IoTest, TombstoneHangsUpWithTheBackend) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd reader(ends[0]);
  auto b = backend(Fd(ends[1]));
  NEED_BACKEND(b);
  pollfd p{reader.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  {
    ReadQueue queue(*b, desk());
    queue.add({&file_, 0, 4 * kMiB, memory_.data, 0});
    run(queue, 1, *b);
  }
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  b.reset();
  EXPECT_EQ(::poll(&p, 1, 10'000), 1);
  EXPECT_NE(p.revents & POLLHUP, 0);
}

TEST_P(IoTest, TombstoneHangsUpAfterAKill) {
  NEED_BACKEND(backend());
  int ends[2], ready[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(ends[0]);
    auto b = backend(Fd(ends[1]));
    // io_uring's fixed file is then the only reference: a descriptor of the process would go too early.
    bool right = b && (::fcntl(ends[1], F_GETFD) < 0) == (GetParam() == "uring");
    for (std::uint64_t i = 0; right && i < 8; ++i)
      right = b->submit({file_.fd.get(), i * kMiB, kMiB, memory_.data + i * kMiB, i});
    if (right) b->flush();
    const char byte = right ? 'y' : 'n';
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  const Fd reader(ends[0]), ready_reader(ready[0]);
  ::close(ends[1]);
  ::close(ready[1]);
  char byte = 0;
  ASSERT_EQ(::read(ready_reader.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  pollfd p{reader.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(::poll(&p, 1, 20'000), 1);
  EXPECT_NE(p.revents & POLLHUP, 0);
}

TEST_P(IoTest, NeighboursAreReadAsOne) {
  auto b = backend();
  NEED_BACKEND(b);
  ReadQueue queue(*b, desk());
  // In no order, and to places apart: what counts is where they lie on the drive.
  const std::uint64_t at[] = {3, 1, 9, 2, 0};
  for (const std::uint64_t n : at) queue.add({&file_, n * 65536, 65536, memory_.data + (10 - n) * 65536, n});
  for (const auto& d : run(queue, std::size(at), *b)) EXPECT_FALSE(d.error) << d.error->text;
  // 3; 1 2; 9; 0 as they stand at the front: the front piece leads, and takes along what follows it.
  EXPECT_EQ(b->submitted, 4u);
  for (const std::uint64_t n : at)
    for (std::uint64_t i = 0; i < 65536; i += 4093)
      ASSERT_EQ(memory_.data[(10 - n) * 65536 + i], pattern(n * 65536 + i)) << n;
}

TEST_P(IoTest, AReadOfSeveralBlamesOnlyTheBadOne) {
  auto b = backend();
  NEED_BACKEND(b);
  ReadQueue queue(*b, desk());
  b->spoil = [](const Read& r, std::int64_t n) -> std::int64_t {
    return r.offset <= 2 * 65536 && r.offset + r.bytes > 2 * 65536 ? -EIO : n;
  };
  for (std::uint64_t n = 0; n < 4; ++n) queue.add({&file_, n * 65536, 65536, memory_.data + n * 65536, n});
  for (const auto& d : run(queue, 4, *b)) EXPECT_EQ(d.error.has_value(), d.tag == 2);
  expect_bytes(0, 131072);
  expect_bytes(3 * 65536, 65536);
  EXPECT_TRUE(queue.idle());
}

TEST_P(IoTest, AShortReadOfSeveralKeepsWhatArrived) {
  auto b = backend();
  NEED_BACKEND(b);
  ReadQueue queue(*b, desk());
  bool once = true;
  b->spoil = [&](const Read& r, std::int64_t n) -> std::int64_t {
    if (r.places.empty() || !std::exchange(once, false)) return n;
    // What lies behind did not come: gone, to show that it is asked for again.
    std::memset(r.places[2].iov_base, 0, r.places[2].iov_len);
    return 2 * 65536;
  };
  for (std::uint64_t n = 0; n < 3; ++n) queue.add({&file_, n * 65536, 65536, memory_.data + n * 65536, n});
  for (const auto& d : run(queue, 3, *b)) EXPECT_FALSE(d.error);
  EXPECT_FALSE(once);
  EXPECT_EQ(desk().get(stats::Counter::kReadRetries), 1u);
  EXPECT_EQ(desk().get(stats::Counter::kDeviceBytesRead), 4u * 65536);
  expect_bytes(0, 3 * 65536);
}

TEST_P(IoTest, DemandGoesBeforeIdleReads) {
  auto b = backend();
  NEED_BACKEND(b);
  ReadQueue queue(*b, desk());
  b->hold = true;
  for (std::uint64_t n = 0; n < 4; ++n)
    queue.add({&file_, n * 2 * kMiB, kMiB, memory_.data + n * 2 * kMiB, n, Urgency::kIdle});
  queue.pump();
  ASSERT_EQ(b->held.size(), 2u) << "half of what demand may have";
  EXPECT_TRUE(queue.has_room()) << "idle reads take no room from demand";
  queue.add({&file_, 9 * kMiB, 65536, memory_.data + 9 * kMiB, 9});
  queue.promote(3);
  queue.pump();
  ASSERT_EQ(b->held.size(), 4u);
  EXPECT_EQ(b->held[2].offset, 9 * kMiB);
  EXPECT_EQ(b->held[3].offset, 6 * kMiB) << "what was promoted comes behind the demand there was";
  queue.cancel_idle();
  b->release();
  std::vector<std::uint64_t> gone;
  for (const auto& d : run(queue, 5, *b))
    if (d.error) gone.push_back(d.tag);
  EXPECT_EQ(gone, (std::vector<std::uint64_t>{2}));
  EXPECT_TRUE(queue.idle());
  expect_bytes(9 * kMiB, 65536);
  expect_bytes(6 * kMiB, kMiB);
}

TEST_P(IoTest, EachDriveHasItsOwnDepth) {
  auto b = backend();
  NEED_BACKEND(b);
  ReadQueue queue(*b, desk(), 2);
  auto other = open_model_file(path());
  ASSERT_TRUE(other.ok());
  other->drive = 1;
  b->hold = true;
  // Extents in two stripes: the first half here, the second there.
  for (std::uint64_t n = 0; n < 3; ++n) {
    const Extent parts[] = {
        {&file_, n * 4 * kMiB, 2 * kMiB, memory_.data + n * 4 * kMiB, n},
        {&*other, n * 4 * kMiB + 2 * kMiB, 2 * kMiB, memory_.data + n * 4 * kMiB + 2 * kMiB, n}};
    queue.add(parts);
  }
  queue.pump();
  std::uint64_t bytes[2] = {0, 0};
  for (const Read& r : b->held) bytes[r.fd == file_.fd.get() ? 0 : 1] += r.bytes;
  EXPECT_EQ(bytes[0], 4 * kMiB);
  EXPECT_EQ(bytes[1], 4 * kMiB);
  EXPECT_FALSE(queue.has_room());
  b->release();
  for (const auto& d : run(queue, 3, *b)) {
    EXPECT_FALSE(d.error);
    EXPECT_EQ(d.bytes, 4 * kMiB) << "done once, when all of it is there";
  }
  expect_bytes(0, 12 * kMiB);
}

TEST(Fifo, IsAQueue) {
  Fifo<int> f;
  std::deque<int> want;
  std::minstd_rand rng(7);
  for (int i = 0; i < 20000; ++i) {
    switch (rng() % 5) {
      case 0:
      case 1:
        f.push_back(i), want.push_back(i);
        break;
      case 2:
        f.push_front(i), want.push_front(i);
        break;
      case 3:
        if (!want.empty()) f.pop_front(), want.pop_front();
        break;
      default:
        if (!want.empty()) {
          const std::size_t at = rng() % want.size();
          f.erase(at), want.erase(want.begin() + static_cast<std::ptrdiff_t>(at));
        }
    }
    ASSERT_EQ(f.size(), want.size());
    for (std::size_t k = 0; k < want.size(); k += 1 + want.size() / 8) ASSERT_EQ(f[k], want[k]);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, IoTest, testing::Values("uring", "pread"),
                         [](const auto& instance) { return instance.param; });

TEST(MakeBackend, UnknownNameIsAnError) {
  BackendSetup setup;
  setup.io = "floppy";
  const auto made = make_backend(std::move(setup));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().text.find("floppy"), std::string::npos);
}

TEST(OpenModelFile, MissingFileIsNamed) {
  const auto file = open_model_file("/nonexistent/layer.bin");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kNotFound);
  EXPECT_NE(file.error().text.find("/nonexistent/layer.bin"), std::string::npos);
}

}  // namespace
}  // namespace wisp::loader
