#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ring/spsc_ring.hpp"
#include "service/stage.hpp"

namespace wisp::gateway::test {

/// Longest time that any single wait of these tests may take before it fails.
inline constexpr int kWatchdogMs = 60000;

/// A response as a client sees it.
struct Response {
  int status = 0;
  std::string head;
  std::string body;  ///< chunks put together
  bool complete = false;
  std::string header(const std::string& name) const;
};

/// A blocking HTTP client on the gateway's Unix socket.
class Client {
 public:
  explicit Client(const std::string& path);
  ~Client();
  Client(Client&& o) noexcept : fd_(std::exchange(o.fd_, -1)), raw_(std::move(o.raw_)) {}

  void send(const std::string& bytes);
  void post(const std::string& path, const std::string& body, const std::string& headers = "");
  /// Reads until the response is whole, or the connection ends.
  Response read();
  /// Reads until the body holds `text`; what follows stays for read().
  Response read_until(const std::string& text);
  /// Reads a head without a body (100 Continue) and returns its status.
  int read_interim();
  /// Waits until the server has begun to answer, and reads nothing. False where it does not in time.
  bool begun() const;
  /// True once the server has closed.
  bool at_end();
  void close();

 private:
  bool more();
  int fd_ = -1;
  std::string raw_;
};

/// A run of hand-made regions with a real gateway on a thread, and the router's end of its edges in the hands
/// of the test. One exists at a time: it lends the gateway the fixed descriptor of its socket.
class FakeEngine {
 public:
  struct Options {
    std::uint32_t records = 4;
    std::uint32_t ctx = 64;
    std::uint64_t arena_bytes = 64 * 1024;
    bool logits = false;
    std::uint32_t logprobs = 0;  ///< room in the journal
    std::string python = {};     ///< of the template helper; "" = the one that the build fixed
  };
  FakeEngine() : FakeEngine(Options{}) {}
  explicit FakeEngine(const Options& options);
  ~FakeEngine();

  /// Ends this life of the gateway, as a kill would: its connections break and it says nothing to the router.
  void stop_gateway();
  /// Starts the next life, of the next epoch, on the same regions.
  void start_gateway();

  Client connect() { return Client(socket_path_); }
  void all_ready();
  shm::Life& life() { return *life_; }
  shm::Desk& desk() { return *at_.desk[0]; }
  void arm(service::CrashPoint point, std::uint32_t countdown, std::uint32_t signal);
  std::uint32_t countdown() const;
  void ring_gateway() { at_.bell[0].ring(); }

  // --- the router ---
  /// Waits for the next message of edge 1 and takes it.
  struct Taken {
    ring::Kind kind;
    std::uint64_t request;
    std::uint32_t pos;
    std::uint32_t gen;
  };
  Taken take();
  /// Takes a submission and opens its record. Returns the request.
  std::uint64_t open_next();
  /// Waits until a message lies on edge 1, without taking it.
  void await_message();
  void commit(std::uint64_t request, std::uint32_t token, shm::Finish finish = shm::Finish::kNone,
              const std::vector<std::uint32_t>& told = {});
  void finish(std::uint64_t request, std::uint32_t length, shm::Finish finish, const std::string& error = "");
  void set_kv_len(std::uint64_t request, std::uint32_t n);
  void recycle(std::uint64_t request);
  shm::JournalRecord* record(std::uint64_t request);
  /// Tells the gateway that something was committed.
  void tell(std::uint64_t request);
  /// Leaves the record to the ring: nothing of edge 1 is read.
  std::uint64_t peek_submission();

 private:
  void* region(std::uint64_t size);
  void make_model();
  void listen();

  std::string folder_;
  std::string socket_path_;
  std::vector<std::pair<void*, std::uint64_t>> regions_;
  shm::Life* life_ = nullptr;
  service::Attachment at_;
  int bells_[2] = {-1, -1};
  int listener_ = -1;
  std::uint32_t epoch_ = 0;
  std::string python_;
  ring::Consumer from_gateway_;
  ring::Producer to_gateway_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

/// The bytes after the first `comment`-free event with this number; for comparing replays.
std::string without_comments(const std::string& stream);

}  // namespace wisp::gateway::test
