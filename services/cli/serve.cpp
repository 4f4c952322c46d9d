#include <poll.h>

#include <memory>

#include "services/cli/commands.hpp"
#include "services/cli/logits_file.hpp"
#include "services/cli/pipeline.hpp"
#include "shm/journal.hpp"

namespace wisp::cli {

namespace {

constexpr int kCheckMs = 1000;

/// Where a client on this machine reaches a server that listens on `host`.
std::string reachable(const std::string& host) {
  if (host == "0.0.0.0") return "127.0.0.1";
  if (host == "::") return "[::1]";
  return host.find(':') != std::string::npos ? "[" + host + "]" : host;
}

void print_address(const OpenModel& model, const std::string& host, std::uint32_t port) {
  const std::string url = "http://" + reachable(host) + ":" + std::to_string(port);
  const std::string shown = host.find(':') != std::string::npos ? "[" + host + "]" : host;
  nlohmann::ordered_json body{{"model", model.manifest.name}};
  std::string path = "/v1/chat/completions";
  if (model.has_tokenizer) {
    body["messages"] = nlohmann::ordered_json::array({{{"role", "user"}, {"content", "What is an apple?"}}});
  } else {
    path = "/v1/completions";
    body["prompt"] = {1, 2, 3};
    body["max_tokens"] = 16;
    body["return_token_ids"] = true;
  }
  std::printf("listening on http://%s:%u\n", shown.c_str(), port);
  std::printf(
      "curl %s -H 'Content-Type: application/json' -d %s\n", (url + path).c_str(),
      shell_word(body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)).c_str());
  std::fflush(stdout);
}

Result<int> run(PipelineFlags& flags) {
  Console console;
  WISP_ASSIGN(Interrupts interrupts, Interrupts::install());
  WISP_ASSIGN(const OpenModel model, open_model(flags.options.model));
  LogitsFolder logits;
  if (std::string& folder = flags.options.logits_dir; !folder.empty()) {
    WISP_ASSIGN(logits, logits_folder(folder, folders_read(flags)));
    folder = logits.path;
  }
  WISP_ASSIGN(const std::unique_ptr<Pipeline> pipeline, Pipeline::start(model, flags, console, interrupts));
  Session& session = pipeline->session();
  print_address(model, flags.options.host, session.ready().port);
  const Watch events = session.events();
  while (!interrupts.came()) {
    pollfd fds[2] = {{interrupts.fd(), POLLIN, 0}, {events.fd(), POLLIN, 0}};
    const int n = ::poll(fds, 2, kCheckMs);
    if (n > 0 && fds[1].revents != 0) events.readable();
    WISP_TRY(session.check());
  }
  console.print("ending\n");
  session.end();
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  CLI::App* c = app.add_subcommand("serve", "Answer over HTTP (OpenAI API)");
  const auto f = std::make_shared<PipelineFlags>();
  add_pipeline_flags(*c, *f);
  c->add_option("--host", f->options.host, "Address to listen on; 0.0.0.0 lets other machines in")
      ->capture_default_str();
  c->add_option("--port", f->options.port, "Port; 0 takes any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  c->add_option("--logits", f->options.logits_dir,
                "Empty folder for the logits of requests that say \"write_logits\": true; a file each, "
                "raw float32 rows, named by the answer's header X-Wisp-Request");
  c->add_option_function<std::uint32_t>(
       "--logprobs", [f](const std::uint32_t& likeliest) { f->options.logprobs = 1 + likeliest; },
       "Room for log-probabilities of each token in answers, with so many of the likeliest, 0 to 20 "
       "(default: none, and requests for them are refused)")
      ->check(CLI::Range(0u, shm::kMostTopLogprobs));
  c->footer("Runs until Ctrl-C. `wisp stat` shows what it does.");
  c->callback([f, &exit_code] {
    auto code = run(*f);
    exit_code = code.ok() ? *code : report("serve", code.error());
  });
}

}  // namespace wisp::cli
