#include "tests/unit/gateway/fake_engine.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "model/manifest.hpp"
#include "model/synth.hpp"
#include "services/gateway/gateway_stage.hpp"

namespace wisp::gateway::test {

namespace fs = std::filesystem;
using shm::CommitWord;
using shm::Finish;
using shm::StageId;

// --- client ---

std::string Response::header(const std::string& name) const {
  const std::size_t at = head.find("\r\n" + name + ": ");
  if (at == std::string::npos) return {};
  const std::size_t begin = at + name.size() + 4;
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

Client::Client(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  std::strncpy(a.sun_path, path.c_str(), sizeof a.sun_path - 1);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0)
    ADD_FAILURE() << "connect: " << std::strerror(errno);
}

Client::~Client() {
  close();
}

void Client::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Client::send(const std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::send(fd_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n <= 0) return;  // the server may refuse a request before it has all of it
    done += static_cast<std::size_t>(n);
  }
}

void Client::post(const std::string& path, const std::string& body, const std::string& headers) {
  send("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + headers +
       "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
}

bool Client::more() {
  pollfd p{fd_, POLLIN, 0};
  if (::poll(&p, 1, kWatchdogMs) <= 0) {
    ADD_FAILURE() << "no answer in time; so far: " << raw_;
    return false;
  }
  char buffer[16384];
  const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
  if (n <= 0) return false;
  raw_.append(buffer, static_cast<std::size_t>(n));
  return true;
}

namespace {
/// Takes `raw` apart as far as it goes. Returns the bytes used, 0 while the response is not complete.
std::size_t parse(const std::string& raw, Response& r) {
  r = {};
  const std::size_t head_end = raw.find("\r\n\r\n");
  if (head_end == std::string::npos) return 0;
  r.head = raw.substr(0, head_end + 2);
  r.status = std::atoi(raw.c_str() + 9);
  std::size_t at = head_end + 4;
  if (const std::string length = r.header("Content-Length"); !length.empty()) {
    const std::size_t n = std::stoul(length);
    r.body = raw.substr(at, n);
    r.complete = r.body.size() == n;
    return r.complete ? at + n : 0;
  }
  if (r.header("Transfer-Encoding") != "chunked") {
    r.body = raw.substr(at);
    return 0;
  }
  for (;;) {
    const std::size_t line = raw.find("\r\n", at);
    if (line == std::string::npos) return 0;
    const std::size_t n = std::stoul(raw.substr(at, line - at), nullptr, 16);
    at = line + 2;
    r.body += raw.substr(at, n);
    if (raw.size() < at + n + 2) return 0;
    at += n + 2;
    if (n == 0) {
      r.complete = true;
      return at;
    }
  }
}
}  // namespace

Response Client::read() {
  Response r;
  for (;;) {
    if (const std::size_t used = parse(raw_, r); used != 0) {
      raw_.erase(0, used);
      return r;
    }
    if (!more()) return r;
  }
}

Response Client::read_until(const std::string& text) {
  Response r;
  while (parse(raw_, r), r.body.find(text) == std::string::npos) {
    if (!more()) {
      ADD_FAILURE() << "never came: " << text << "\ngot: " << raw_;
      break;
    }
  }
  return r;
}

int Client::read_interim() {
  std::size_t end;
  while ((end = raw_.find("\r\n\r\n")) == std::string::npos)
    if (!more()) return 0;
  const int status = std::atoi(raw_.c_str() + 9);
  raw_.erase(0, end + 4);
  return status;
}

bool Client::begun() const {
  pollfd p{fd_, POLLIN, 0};
  return ::poll(&p, 1, kWatchdogMs) > 0;
}

bool Client::at_end() {
  while (more()) {
  }
  return true;
}

std::string without_comments(const std::string& stream) {
  std::string out;
  std::size_t at = 0;
  while (at < stream.size()) {
    const std::size_t end = std::min(stream.find("\n\n", at), stream.size() - 2) + 2;
    if (stream[at] != ':') out += stream.substr(at, end - at);
    at = end;
  }
  return out;
}

// --- regions ---

void* FakeEngine::region(std::uint64_t size) {
  void* p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  WISP_CHECK(p != MAP_FAILED);
  regions_.emplace_back(p, size);
  return p;
}

/// A random model of 4096 ids with the tokenizer of the test data.
void FakeEngine::make_model() {
  char name[] = "/tmp/wisp-gateway-XXXXXX";
  folder_ = ::mkdtemp(name);
  socket_path_ = folder_ + "/socket";
  model::SynthOptions o;
  o.destination = folder_ + "/pocket";
  o.layers = 1;
  o.hidden = 64;
  o.heads = 2;
  o.kv_heads = 1;
  o.head_dim = 32;
  o.experts = 4;
  o.top_k = 2;
  o.width = 32;
  o.vocab = 4096;
  o.max_positions = 65536;
  const auto made = model::synth(o, {});
  ASSERT_TRUE(made.ok()) << made.error().text;
  const std::string data = WISP_TEST_DATA "/pocket-dictionary/";
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy_file(data + file, o.destination + "/" + file);
  auto manifest = model::load_manifest(o.destination);
  ASSERT_TRUE(manifest.ok()) << manifest.error().text;
  manifest->generation.eos = {4095, 4093};
  std::ofstream(o.destination + "/manifest.json") << model::write_manifest(*manifest);
}

void FakeEngine::listen() {
  listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  std::strncpy(a.sun_path, socket_path_.c_str(), sizeof a.sun_path - 1);
  ASSERT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  ASSERT_EQ(::listen(listener_, 64), 0);
  ASSERT_EQ(::dup2(listener_, service::fds::kListenUnix), service::fds::kListenUnix);
}

FakeEngine::FakeEngine(const Options& options) : python_(options.python) {
  make_model();
  listen();
  at_.process = std::make_shared<service::ProcessPart>();
  at_.plan.model_name = "pocket";
  at_.plan.options.model = folder_ + "/pocket";
  at_.plan.options.logits_dir = options.logits ? folder_ : "";
  at_.plan.ctx = options.ctx;
  at_.plan.records = options.records;
  life_ = static_cast<shm::Life*>(region(sizeof(shm::Life)));
  at_.life = life_;
  shm::DeskPlan desk;
  desk.arena_bytes[shm::index(shm::EdgeId::kGatewayRouter)] = options.arena_bytes;
  for (std::uint32_t i = 0; i < 2; ++i) {
    const auto id = static_cast<StageId>(i);
    void* base = region(shm::desk_size(id, desk));
    shm::init_desk(base, id, desk, 1, 1);
    at_.desk[i] = static_cast<shm::Desk*>(base);
    bells_[i] = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    at_.bell[i] = ring::Doorbell(bells_[i]);
  }
  // The test is always asleep: every message rings, and poll() on the bell waits for it.
  at_.desk[1]->parked.store(1);
  at_.journal =
      static_cast<shm::Journal*>(region(shm::journal_size(options.records, options.ctx, options.logprobs)));
  shm::init_journal(at_.journal, options.records, options.ctx, 1, 1, options.logprobs);
  for (std::uint32_t i = 1; i < 4; ++i) {
    life_->stage[i].epoch = 1;
    life_->stage[i].state = static_cast<std::uint32_t>(shm::StageState::kStarting);
  }
  from_gateway_ = ring::Consumer(at_.desk[1], at_.desk[0], shm::EdgeId::kGatewayRouter, at_.bell[0]);
  to_gateway_ = ring::Producer(at_.desk[1], at_.desk[0], shm::EdgeId::kRouterGateway, at_.bell[0]);
  start_gateway();
}

FakeEngine::~FakeEngine() {
  stop_gateway();
  for (int fd : {bells_[0], bells_[1], listener_}) ::close(fd);
  ::close(service::fds::kListenUnix);
  for (const auto& [p, size] : regions_) ::munmap(p, size);
  fs::remove_all(folder_);
}

void FakeEngine::start_gateway() {
  stop_ = false;
  ++epoch_;
  std::atomic<bool> made{false};
  thread_ = std::thread([this, &made] {
    service::StageContext ctx(at_, StageId::kGateway, epoch_);
    ctx.bind_thread();
    text::TemplateHelper::Options helper;
    helper.python = python_;
    auto stage = make_gateway_with(ctx, helper);
    if (!stage.ok()) ADD_FAILURE() << stage.error().text;
    made = true;
    made.notify_one();
    if (stage.ok()) service::run_stage(ctx, **stage, [this] { return stop_.load(); });
  });
  made.wait(false);
}

void FakeEngine::stop_gateway() {
  if (!thread_.joinable()) return;
  stop_ = true;
  ring_gateway();
  thread_.join();
}

void FakeEngine::arm(service::CrashPoint point, std::uint32_t countdown, std::uint32_t signal) {
  service::detail::Armed* armed = at_.process->armed[0].load();
  ASSERT_NE(armed, nullptr);
  armed->countdown = countdown;
  armed->signal = signal;
  armed->point = static_cast<std::uint32_t>(point);
}

std::uint32_t FakeEngine::countdown() const {
  return at_.process->armed[0].load()->countdown;
}

void FakeEngine::all_ready() {
  for (std::uint32_t i = 1; i < 4; ++i)
    life_->stage[i].state = static_cast<std::uint32_t>(shm::StageState::kReady);
  ring_gateway();
}

// --- the router ---

void FakeEngine::await_message() {
  while (from_gateway_.empty()) {
    pollfd p{bells_[1], POLLIN, 0};
    if (::poll(&p, 1, kWatchdogMs) <= 0) {
      FAIL() << "no message on edge 1 in time";
    }
    at_.bell[1].silence();
  }
}

FakeEngine::Taken FakeEngine::take() {
  await_message();
  const ring::Descriptor* d = from_gateway_.front();
  if (d == nullptr) return {};
  const Taken t{d->kind, d->request, d->pos, d->gen};
  from_gateway_.pop();
  return t;
}

std::uint64_t FakeEngine::peek_submission() {
  await_message();
  const ring::Descriptor* d = from_gateway_.front();
  return d != nullptr && d->kind == ring::Kind::kSubmit ? d->request : 0;
}

std::uint64_t FakeEngine::open_next() {
  const std::uint64_t request = peek_submission();
  const ring::Descriptor* d = from_gateway_.front();
  EXPECT_NE(request, 0u) << "the next message is no submission";
  if (request == 0) return 0;
  const auto payload = from_gateway_.payload(*d);
  shm::SubmitMessage m;
  std::memcpy(&m, payload.data(), sizeof m);
  std::uint32_t i = 0;
  while (at_.journal->record(i)->request.load() != 0) ++i;
  shm::JournalRecord* r = at_.journal->record(i);
  const std::uint64_t g = r->generation.load();
  r->generation.store(g + 1);
  r->params = m.params;
  r->error = {};
  std::memcpy(shm::Journal::ids(r), payload.data() + sizeof m,
              m.params.prompt_tokens * sizeof(std::uint32_t));
  r->kv_len.store(0);
  r->commit.store(CommitWord{}.pack());
  r->request.store(request);
  r->generation.store(g + 2);
  from_gateway_.pop();
  tell(request);
  return request;
}

shm::JournalRecord* FakeEngine::record(std::uint64_t request) {
  for (std::uint32_t i = 0; i < at_.journal->records; ++i)
    if (at_.journal->record(i)->request.load() == request) return at_.journal->record(i);
  return nullptr;
}

void FakeEngine::tell(std::uint64_t request) {
  ring::Message m;
  m.kind = ring::Kind::kToken;
  m.request = request;
  to_gateway_.publish(m);
}

void FakeEngine::commit(std::uint64_t request, std::uint32_t token, Finish finish,
                        const std::vector<std::uint32_t>& told) {
  shm::JournalRecord* r = record(request);
  ASSERT_NE(r, nullptr);
  CommitWord c = CommitWord::unpack(r->commit.load());
  shm::Journal::ids(r)[r->params.prompt_tokens + c.length] = token;
  std::copy(told.begin(), told.end(), at_.journal->told(r, c.length));
  r->commit.store(CommitWord{c.length + 1, finish, 0}.pack(), std::memory_order_release);
  tell(request);
}

void FakeEngine::finish(std::uint64_t request, std::uint32_t length, Finish finish,
                        const std::string& error) {
  shm::JournalRecord* r = record(request);
  ASSERT_NE(r, nullptr);
  error.copy(r->error.bytes, sizeof r->error.bytes - 1);
  r->commit.store(CommitWord{length, finish, 0}.pack(), std::memory_order_release);
  tell(request);
}

void FakeEngine::set_kv_len(std::uint64_t request, std::uint32_t n) {
  record(request)->kv_len.store(n);
  tell(request);
}

void FakeEngine::recycle(std::uint64_t request) {
  shm::JournalRecord* r = record(request);
  ASSERT_NE(r, nullptr);
  r->request.store(0);
  r->generation.store(r->generation.load() + 2);
}

}  // namespace wisp::gateway::test
