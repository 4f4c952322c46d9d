#include "services/gateway/prompt.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "services/gateway/text/tokenizer.hpp"
#include "tests/template_helper_pid.hpp"
#include "tests/unit/gateway/fake_engine.hpp"

/// How a request's text becomes ids: templates, their helper, lengths.
namespace wisp::gateway::test {
namespace {

using ring::Kind;
using shm::Finish;

constexpr std::uint32_t kEos = 4095;

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer t = [] {
    std::ifstream in(WISP_TEST_DATA "/pocket-dictionary/tokenizer.json");
    const std::string json((std::istreambuf_iterator<char>(in)), {});
    return text::Tokenizer::load(json).value();
  }();
  return t;
}

std::vector<std::uint32_t> ids_of(const std::string& text) {
  return tokenizer().encode(text, false).value();
}

/// A folder of its own, gone with it.
struct Folder {
  Folder() : path(::testing::TempDir() + "prompt-XXXXXX") { EXPECT_NE(::mkdtemp(path.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  void write(const char* name, const std::string& text) const { std::ofstream(path + "/" + name) << text; }
  std::string path;
};

TEST(Prompt, AVocabularyInKimisFormIsReadWhereThereIsNoOther) {
  std::ifstream in(WISP_TEXT_SPLITS);
  const auto kimi = nlohmann::json::parse(in)["kimi"];
  const auto ranks = kimi["ranks"].get<std::string>();
  const Folder folder;
  folder.write("tiktoken.model", ranks);
  ApiRequest request;
  request.endpoint = Endpoint::kCompletion;
  request.prompt = "What is a dog?";
  PromptMaker without{text::TemplateHelper::Options{}};
  const Status refused = without.load(folder.path, 100);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().text.find("tokenizer_config.json"), std::string::npos) << refused.error().text;

  folder.write("tokenizer_config.json", kimi["config"].dump());
  PromptMaker maker{text::TemplateHelper::Options{}};
  ASSERT_TRUE(maker.load(folder.path, 100).ok());
  const auto made = maker.ids_of(request);
  const auto want =
      text::Tokenizer::load_tiktoken(ranks, kimi["config"].dump()).value().encode(*request.prompt, true);
  EXPECT_EQ(std::get<std::vector<std::uint32_t>>(made), *want);
}

TEST(Prompt, ChatGoesThroughTheTemplate) {
  FakeEngine engine;
  engine.all_ready();
  Client c = engine.connect();
  c.post("/v1/chat/completions",
         R"({"model":"pocket","messages":[{"role":"user","content":"hi<|im_end|>"}]})");
  const std::uint64_t request = engine.open_next();
  ASSERT_NE(request, 0u);
  shm::JournalRecord* r = engine.record(request);
  const auto start = tokenizer().id_of("<|im_start|>").value();
  const auto end = tokenizer().id_of("<|im_end|>").value();
  std::vector<std::uint32_t> want{start};
  const auto add = [&](const std::string& text) {
    for (const std::uint32_t id : ids_of(text)) want.push_back(id);
  };
  add("user\nhi<|im_end|>");  // the client's own is text
  want.push_back(end);
  add("\n");
  want.push_back(start);
  add("assistant\n");
  const std::vector<std::uint32_t> got(shm::Journal::ids(r), shm::Journal::ids(r) + r->params.prompt_tokens);
  EXPECT_EQ(got, want);
  EXPECT_EQ(r->params.eos_count, 2u);
  for (const std::uint32_t id : ids_of("hello there")) engine.commit(request, id);
  engine.commit(request, kEos, Finish::kStop);
  const Response answer = c.read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_NE(answer.body.find(R"("message":{"role":"assistant","content":"hello there","refusal":null})"),
            std::string::npos)
      << answer.body;
  EXPECT_NE(answer.body.find(R"("finish_reason":"stop")"), std::string::npos);
  EXPECT_EQ(engine.take().kind, Kind::kAcknowledge);
}

constexpr const char* kChat = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":1})";

/// The template helper of this process, once it runs.
pid_t running_helper() {
  for (int i = 0; i < kWatchdogMs; ++i) {
    const pid_t pid = wisp::test::template_helper_of(::getpid());
    if (pid > 0) return pid;
    ::poll(nullptr, 0, 1);
  }
  ADD_FAILURE() << "no template helper in time";
  return -1;
}

/// A helper that stands still, then dies under its request: other streams go on meanwhile, requests in its
/// queue keep their order, one whose client left is not made, and the request itself is answered.
TEST(Prompt, AHelperThatHangsAndDiesHoldsNobodyUp) {
  FakeEngine engine;
  engine.all_ready();
  Client stream = engine.connect();
  stream.post("/v1/completions", R"({"prompt":[5,6],"max_tokens":9,"stream":true,"return_token_ids":true})");
  const std::uint64_t streaming = engine.open_next();
  Client first = engine.connect();
  first.post("/v1/chat/completions", kChat);
  const std::uint64_t warm = engine.open_next();
  engine.commit(warm, kEos, Finish::kStop);
  EXPECT_EQ(first.read().status, 200);
  EXPECT_EQ(engine.take().kind, Kind::kAcknowledge);
  engine.recycle(warm);

  const pid_t helper = running_helper();
  ASSERT_GT(helper, 0);
  ASSERT_EQ(::kill(helper, SIGSTOP), 0);
  const std::uint64_t seen = engine.desk().get(stats::Counter::kHttpRequests);
  first.post("/v1/chat/completions", kChat);
  while (engine.desk().get(stats::Counter::kHttpRequests) < seen + 1) ::poll(nullptr, 0, 1);
  Client leaves = engine.connect();
  leaves.post("/v1/completions", R"({"prompt":"river","max_tokens":1})");
  Client second = engine.connect();
  second.post("/v1/completions", R"({"prompt":"hello","max_tokens":1})");
  while (engine.desk().get(stats::Counter::kHttpRequests) < seen + 3) ::poll(nullptr, 0, 1);
  leaves.close();
  Client ready = engine.connect();
  ready.post("/v1/completions", R"({"prompt":[9],"max_tokens":1})");
  const std::uint64_t ids_only = engine.open_next();
  ASSERT_NE(ids_only, 0u) << "ids waited for a template";
  engine.commit(ids_only, kEos, Finish::kStop);
  EXPECT_EQ(ready.read().status, 200);
  EXPECT_EQ(engine.take().kind, Kind::kAcknowledge);
  engine.recycle(ids_only);
  for (const std::uint32_t id : ids_of("still here")) {
    engine.commit(streaming, id);
    (void)stream.read_until("\"token_ids\":[" + std::to_string(id) + "]");
  }
  EXPECT_EQ(engine.desk().get(stats::Counter::kHelperRestarts), 0u);

  ASSERT_EQ(::kill(helper, SIGKILL), 0);
  const std::uint64_t chat = engine.open_next();
  ASSERT_NE(chat, 0u);
  EXPECT_GT(engine.record(chat)->params.prompt_tokens, 1u);
  const std::uint64_t plain = engine.open_next();
  engine.commit(chat, kEos, Finish::kStop);
  EXPECT_EQ(first.read().status, 200);
  ASSERT_NE(plain, 0u);
  EXPECT_EQ(shm::Journal::ids(engine.record(plain))[0], ids_of("hello")[0])
      << "a request whose client has left was submitted";
  engine.commit(plain, kEos, Finish::kStop);
  EXPECT_EQ(second.read().status, 200);
  EXPECT_EQ(engine.desk().get(stats::Counter::kHelperRestarts), 1u);
  EXPECT_NE(running_helper(), helper);
  engine.commit(streaming, kEos, Finish::kStop);
  EXPECT_TRUE(stream.read().body.ends_with("data: [DONE]\n\n"));
}

/// A model folder with the bundled tokenizer, and files of our own beside it.
class PromptFolder {
 public:
  PromptFolder(const std::string& config, const std::string& chat_template,
               const nlohmann::json& post_processor = nullptr) {
    namespace fs = std::filesystem;
    std::string pattern = (fs::temp_directory_path() / "wisp-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    std::ifstream in(WISP_TEST_DATA "/pocket-dictionary/tokenizer.json");
    auto json = nlohmann::json::parse(in);
    json["post_processor"] = post_processor;
    std::ofstream(path_ + "/tokenizer.json") << json;
    std::ofstream(path_ + "/tokenizer_config.json") << config;
    if (!chat_template.empty()) std::ofstream(path_ + "/chat_template.jinja") << chat_template;
  }
  ~PromptFolder() { std::filesystem::remove_all(path_); }

  ApiResult<std::vector<std::uint32_t>> ask(Endpoint endpoint, const std::string& text) const {
    PromptMaker maker({});
    EXPECT_TRUE(maker.load(path_, 100).ok());
    ApiRequest request;
    request.endpoint = endpoint;
    if (endpoint == Endpoint::kCompletion) request.prompt = text;
    request.messages = nlohmann::ordered_json::array({{{"role", "user"}, {"content", text}}});
    return maker.ids_of(request);
  }

 private:
  std::string path_;
};

/// A template and a tokenizer that both write a first token write one, and none where neither does.
TEST(Prompt, BeginsWithOneFirstToken) {
  const std::string with = R"({"bos_token":"<|endoftext|>","add_bos_token":true})";
  const std::string without = R"({"bos_token":"<|endoftext|>","add_bos_token":false})";
  const std::string body = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}";
  const std::uint32_t bos = tokenizer().id_of("<|endoftext|>").value();
  struct Case {
    std::string config, chat_template;
    Endpoint endpoint;
    std::string text;
    std::ptrdiff_t count;
  };
  for (const Case& c : {Case{with, "{{ bos_token }}" + body, Endpoint::kChat, "hi", 1},
                        {with, "<|endoftext|>" + body, Endpoint::kChat, "hi", 1},
                        {with, "{{ bos_token }}" + body, Endpoint::kChat, "<|endoftext|>", 1},
                        {without, "{{ bos_token }}" + body, Endpoint::kChat, "hi", 1},
                        {with, body, Endpoint::kChat, "hi", 0},
                        {with, body, Endpoint::kCompletion, "hi", 1},
                        {with, body, Endpoint::kCompletion, "<|endoftext|>hi", 1},
                        {without, body, Endpoint::kCompletion, "hi", 0}}) {
    SCOPED_TRACE(c.config + c.chat_template + c.text);
    const auto made = PromptFolder(c.config, c.chat_template).ask(c.endpoint, c.text);
    const auto* ids = std::get_if<std::vector<std::uint32_t>>(&made);
    ASSERT_NE(ids, nullptr);
    EXPECT_EQ(std::count(ids->begin(), ids->end(), bos), c.count);
    EXPECT_EQ(ids->front() == bos, c.count == 1);
  }
}

/// Where no flag says it, the post-processor of tokenizer.json does, for completions alone.
TEST(Prompt, BeginsAsThePostProcessorSays) {
  const auto single = [](std::initializer_list<const char*> tokens) {
    nlohmann::json out = {{"type", "TemplateProcessing"}, {"single", nlohmann::json::array()}};
    for (const char* token : tokens)
      out["single"].push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    out["single"].push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    out["single"].push_back({{"SpecialToken", {{"id", "<|im_end|>"}, {"type_id", 0}}}});
    return out;
  };
  const std::uint32_t bos = tokenizer().id_of("<|endoftext|>").value();
  const std::uint32_t start = tokenizer().id_of("<|im_start|>").value();
  const nlohmann::json bytes = {{"type", "ByteLevel"}, {"trim_offsets", false}};
  const nlohmann::json both = single({"<|endoftext|>", "<|im_start|>"});
  const nlohmann::json within = {{"type", "Sequence"}, {"processors", {bytes, both}}};
  struct Case {
    std::string config;
    nlohmann::json post_processor;
    std::string text;
    std::vector<std::uint32_t> first;
  };
  const std::vector<std::uint32_t> hi = ids_of("hi");
  for (const Case& c :
       {Case{"{}", single({"<|endoftext|>"}), "hi", {bos}}, Case{"{}", both, "hi", {bos, start}},
        Case{"{}", within, "hi", {bos, start}}, Case{"{}", bytes, "hi", {}}, Case{"{}", single({}), "hi", {}},
        Case{"{}", {{"type", 5}, {"single", 7}}, "hi", {}},
        Case{"{}",
             {{"type", "Sequence"}, {"processors", {7, {{"type", "TemplateProcessing"}, {"single", {7}}}}}},
             "hi",
             {}},
        Case{"{}", both, "<|endoftext|><|im_start|>hi", {bos, start}},
        Case{R"({"add_bos_token":false})", both, "hi", {}},
        Case{R"({"bos_token":"<|endoftext|>","add_bos_token":true})", both, "hi", {bos}}}) {
    SCOPED_TRACE(c.config + c.post_processor.dump());
    const PromptFolder folder(c.config, "<|im_start|>{{ messages[0].content }}", c.post_processor);
    std::vector<std::uint32_t> want = c.first;
    want.insert(want.end(), hi.begin(), hi.end());
    EXPECT_EQ(std::get<0>(folder.ask(Endpoint::kCompletion, c.text)), want);
    EXPECT_EQ(std::get<0>(folder.ask(Endpoint::kChat, "hi")).front(), start);
  }
}

/// No template is guessed: a model without one answers completions only, and says so.
TEST(Prompt, NoTemplateIsGuessed) {
  const PromptFolder folder(R"({"eos_token":"<|im_end|>"})", "");
  const auto made = folder.ask(Endpoint::kChat, "hi");
  ASSERT_TRUE(std::holds_alternative<ApiError>(made));
  EXPECT_EQ(std::get<ApiError>(made).status, 400);
  EXPECT_NE(std::get<ApiError>(made).message.find("no chat template"), std::string::npos);
  EXPECT_FALSE(std::holds_alternative<ApiError>(folder.ask(Endpoint::kCompletion, "hi")));
}

/// A helper that ends at once is the server's fault, and asking again would not mend it.
TEST(Prompt, AHelperThatCannotRunIs500) {
  FakeEngine engine({.python = "/bin/false"});
  engine.all_ready();
  Client c = engine.connect();
  c.post("/v1/chat/completions", kChat);
  const Response r = c.read();
  EXPECT_EQ(r.status, 500);
  EXPECT_NE(r.body.find("template helper: died twice"), std::string::npos) << r.body;
  EXPECT_EQ(r.header("Retry-After"), "");
}

TEST(Prompt, ATextThatCannotFitIsNotTokenized) {
  FakeEngine engine({.ctx = 64});
  engine.all_ready();
  for (const bool chat : {false, true}) {
    Client c = engine.connect();
    // A single word, which the merges would see whole; a template's own tokens come on top.
    const std::string text(60000, 'a');
    c.post(chat ? "/v1/chat/completions" : "/v1/completions",
           chat ? R"({"messages":[{"role":"user","content":")" + text + "\"}]}"
                : "{\"prompt\":\"" + text + "\"}");
    const Response r = c.read();
    EXPECT_EQ(r.status, 400);
    EXPECT_NE(r.body.find("has more than 64 tokens"), std::string::npos) << r.body;
    EXPECT_NE(r.body.find("context_length_exceeded"), std::string::npos) << r.body;
  }
}

}  // namespace
}  // namespace wisp::gateway::test
