#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "plan/run_plan.hpp"
#include "services/cli/draft_figures.hpp"
#include "services/cli/stat_view.hpp"

namespace wisp::cli {

namespace {

using Json = nlohmann::ordered_json;

__attribute__((format(printf, 1, 2))) std::string print(const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return text;
}

std::string size(const Json& bytes) {
  return plan::format_size(bytes.get<std::uint64_t>());
}
std::uint64_t number(const Json& j) {
  return j.get<std::uint64_t>();
}
const std::string& text_of(const Json& j) {
  return j.get_ref<const std::string&>();
}

std::string stage_rows(const Json& stages) {
  std::string text =
      print("%-8s %8s %6s %9s  %-28s %s\n", "stage", "pid", "epoch", "restarts", "state", "waits for");
  for (const Json& s : stages) {
    std::string state = text_of(s["state"]);
    if (number(s["traced_by"]) != 0)
      state += ", traced by " + std::to_string(number(s["traced_by"]));
    else if (s["stopped"].get<bool>())
      state += ", stopped";
    std::string waits = text_of(s["waits_for"]);
    if (!waits.empty())
      waits += print(" (%.1f s)", s["waits_s"].get<double>());
    else if (s["alive"].get<bool>() && !s["stopped"].get<bool>() && number(s["traced_by"]) == 0)
      waits = "nothing: it runs";
    const std::string pid = s["alive"].get<bool>() ? std::to_string(number(s["pid"])) : "-";
    text += print("%-8s %8s %6llu %9llu  %-28s %s\n", text_of(s["stage"]).c_str(), pid.c_str(),
                  static_cast<unsigned long long>(number(s["epoch"])),
                  static_cast<unsigned long long>(number(s["restarts"])), state.c_str(), waits.c_str());
  }
  return text;
}

std::string slot_rows(const Json& j) {
  const Json& s = j["slots"];
  std::string text =
      print("slots    %llu for %llu experts:", static_cast<unsigned long long>(number(s["total"])),
            static_cast<unsigned long long>(number(j["experts"])));
  const char* separator = " ";
  for (const char* state : {"ready", "read_ahead", "filling", "evicting", "draining", "free"}) {
    std::string words = state;
    std::replace(words.begin(), words.end(), '_', ' ');
    text += separator + std::to_string(number(s[state])) + " " + words;
    separator = ", ";
  }
  text += s["dense_ready"].get<bool>() ? "\n" : "; the weights beside the experts are being read\n";
  const Json& m = j["memory"];
  return text + "memory   " + size(m["now_bytes"]) + " now, " + size(m["peak_bytes"]) + " at most, " +
         size(m["budget_bytes"]) + " allowed; " + size(m["slab_in_memory"]) + " of " + size(m["slab_bytes"]) +
         " for experts are taken" + (m["locked"].get<bool>() ? ", locked" : "") + ", " +
         size(m["huge_page_bytes"]) + " in huge pages\nKV       " +
         std::to_string(number(j["kv"]["tokens"])) + " tokens in " + text_of(j["kv"]["format"]) + ", " +
         size(j["kv"]["bytes"]) + "\n";
}

/// Nothing where no step had drafts.
std::string draft_rows(const Json& j) {
  DraftFigures f;
  f.steps = number(j["steps"]);
  if (f.steps == 0) return "";
  const auto ns = [&](const char* of) { return static_cast<std::uint64_t>(j[of].get<double>() * 1e6); };
  f.tokens = number(j["tokens"]);
  f.ns = ns("step_ms");
  f.plain_tokens = number(j["plain_tokens"]);
  f.plain_ns = ns("plain_step_ms");
  j["drafted_by_place"].get_to(f.drafted);
  j["accepted_by_place"].get_to(f.accepted);
  return "drafts   " + std::to_string(f.all_drafted()) + ", " + std::to_string(f.all_accepted()) +
         " stood; by place " + f.by_place() +
         print("; %.2f tokens a pass; %.1f tokens per second with them, %.1f in plain steps\n",
               f.tokens_per_pass(), f.tok_s(), f.plain_tok_s());
}

std::string request_rows(const Json& requests) {
  if (requests.empty()) return "requests none\n";
  std::string text = print("%-20s %-12s %8s %8s %8s\n", "request", "state", "prompt", "in KV", "tokens");
  for (const Json& r : requests)
    text += print("%-20llu %-12s %8llu %8llu %8llu\n", static_cast<unsigned long long>(number(r["request"])),
                  text_of(r["state"]).c_str(), static_cast<unsigned long long>(number(r["prompt_tokens"])),
                  static_cast<unsigned long long>(number(r["kv_len"])),
                  static_cast<unsigned long long>(number(r["tokens"])));
  return text;
}

std::string hop_rows(const Json& hops) {
  std::string text = print("%-20s %10s %12s %12s\n", "hop", "messages", "p50", "p99");
  for (const Json& h : hops)
    text += print("%-20s %10llu %9.1f us %9.1f us\n", text_of(h["edge"]).c_str(),
                  static_cast<unsigned long long>(number(h["messages"])), h["p50_us"].get<double>(),
                  h["p99_us"].get<double>());
  return text;
}

std::string counter_rows(const Json& stages) {
  std::string text;
  for (const Json& s : stages) {
    std::string line = print("%-8s", text_of(s["stage"]).c_str());
    const std::string indent(line.size(), ' ');
    for (const auto& [name, value] : s["counters"].items()) {
      const std::string item = " " + name + " " + std::to_string(number(value));
      if (line.size() + item.size() > 110) {
        text += line + "\n";
        line = indent;
      }
      line += item;
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace

std::string stat_text(const Json& j) {
  std::string head = text_of(j["model"]) + ", topology " + text_of(j["topology"]);
  if (number(j["port"]) != 0) head += ", port " + std::to_string(number(j["port"]));
  head += ", " + text_of(j["run_dir"]) + "\n";
  if (!text_of(j["given_up"]).empty()) head += text_of(j["given_up"]) + "\n";
  if (j["engine_clock_paused"].get<bool>()) head += "the engine clock stands still: a stage is held\n";
  return head + "\n" + stage_rows(j["stages"]) + "\n" + slot_rows(j) + draft_rows(j["speculation"]) + "\n" +
         request_rows(j["requests"]) + "\n" + hop_rows(j["hops"]) + "\n" + counter_rows(j["stages"]);
}

}  // namespace wisp::cli
