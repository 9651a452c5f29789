// See options.h. One table has every option: its name, its value's name, its line of help, and what it sets.
#include "base/options.h"

#include <arpa/inet.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>

namespace orrery::server {
namespace {

uint64_t whole_number(const std::string& option, const std::string& text, uint64_t most) {
  const bool digits = !text.empty() && text.size() <= 18 && text.find_first_not_of("0123456789") == std::string::npos;
  const uint64_t value = digits ? std::stoull(text) : 0;
  if (!digits || value > most)
    throw std::invalid_argument(option + ": '" + text + "' is not a whole number from 0 to " + std::to_string(most));
  return value;
}

// 512MiB, 2GiB, 4GB, 1000.
uint64_t bytes(const std::string& option, const std::string& text) {
  const size_t end = text.find_first_not_of("0123456789");
  const std::string unit = end == std::string::npos ? "" : text.substr(end);
  uint64_t factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  if (unit == "KiB") factor = 1ull << 10;
  if (unit == "MiB") factor = 1ull << 20;
  if (unit == "GiB") factor = 1ull << 30;
  if (unit == "KB") factor = 1000;
  if (unit == "MB") factor = 1000 * 1000;
  if (unit == "GB") factor = 1000 * 1000 * 1000;
  if (factor == 0) throw std::invalid_argument(option + ": '" + text + "' is not a size, as in 512MiB or 2GiB");
  return whole_number(option, text.substr(0, end), 1'000'000'000) * factor;
}

std::string file_text(const std::string& option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw std::invalid_argument(option + ": cannot read " + path);
  return text.str();
}

// The first line. An empty key would let everybody in.
void set_key(Options& o, const std::string& option, const std::string& text) {
  o.api_key = text.substr(0, text.find_first_of("\r\n"));
  if (o.api_key.empty()) throw std::invalid_argument(option + ": the key is empty");
}

void set_kv_budget(Options& o, const std::string& text) {
  if (text.empty() || text.back() != '%') {
    o.kv_budget_bytes = bytes("--kv-budget", text);
    return;
  }
  const uint64_t percent = whole_number("--kv-budget", text.substr(0, text.size() - 1), 100);
  if (percent == 0) throw std::invalid_argument("--kv-budget: 0% holds nothing");
  o.kv_budget_share = static_cast<float>(percent) / 100.0f;
}

// FILE[:SCALE]: what follows the last colon is the scale if it is a number.
void add_adapter(Options& o, const std::string& text) {
  const size_t colon = text.rfind(':');
  const std::string after = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (after.empty() || after.find_first_not_of("+-.0123456789eE") != std::string::npos) return o.adapters.emplace_back(text, 1.0f), void();
  char* end = nullptr;
  const float scale = std::strtof(after.c_str(), &end);
  if (*end || colon == 0) throw std::invalid_argument("--lora: '" + text + "' is not FILE or FILE:SCALE");
  o.adapters.emplace_back(text.substr(0, colon), scale);
}

struct Option {
  const char* name;
  const char* value;  // nullptr: a switch
  const char* help;
  std::function<void(Options&, const std::string&)> set;
};

template <typename Number>
std::function<void(Options&, const std::string&)> number(const char* name, Number Options::*member, uint64_t most) {
  return [=](Options& o, const std::string& text) { o.*member = static_cast<Number>(whole_number(name, text, most)); };
}
std::function<void(Options&, const std::string&)> words(std::string Options::*member) {
  return [=](Options& o, const std::string& text) { o.*member = text; };
}

const std::vector<Option>& all_options() {
  static const std::vector<Option> options = {
      {"--host", "ADDRESS", "Address to listen on (default 127.0.0.1). Another than loopback takes an API key.", words(&Options::host)},
      {"--port", "N", "Port; 0: a free one, which is printed (default 8080).", number("--port", &Options::port, 65535)},
      {"--api-key", "KEY", "Requests need `Authorization: Bearer KEY`. Other users of the machine can see a command line.",
       [](Options& o, const std::string& key) { set_key(o, "--api-key", key); }},
      {"--api-key-file", "FILE", "The key is the file's first line.",
       [](Options& o, const std::string& path) { set_key(o, "--api-key-file", file_text("--api-key-file", path)); }},
      {"--allow-origin", "ORIGIN", "Web pages of this origin may ask, as http://localhost:3000; *: all (default: none).",
       words(&Options::allow_origin)},
      {"--name", "NAME", "The model's name in requests (default: the file's name without .gguf).", words(&Options::name)},
      {"--template", "FILE", "A Jinja template that replaces the model's.",
       [](Options& o, const std::string& path) { o.template_source = file_text("--template", path); }},
      {"--lora", "FILE[:SCALE]", "A LoRA adapter for all answers, and its scale (default 1); may be given several times.", add_adapter},
      {"--threads", "N", "Threads that compute; 0: one per processor (default 0).", number("--threads", &Options::threads, 1024)},
      {"--backend", "NAME", "auto, cpu or cuda (default auto).", words(&Options::backend)},
      {"--budget", "SIZE", "Device memory for KV cache and workspace, as in 2GiB (default: the library's).",
       [](Options& o, const std::string& text) { o.device_budget_bytes = bytes("--budget", text); }},
      {"--context", "N", "Tokens of each session; 0: as trained (default 8192, or as trained if that is less).",
       [](Options& o, const std::string& text) {
         o.context_tokens = static_cast<uint32_t>(whole_number("--context", text, 1u << 30)), o.context_given = true;
       }},
      {"--kv-type", "TYPE", "KV cache: f16, f32, q8_0, k8v4 or q4_0 (default f16).", words(&Options::kv_type)},
      {"--policy", "NAME", "Which KV stays on the device (default full; auto with --kv-budget).", words(&Options::policy)},
      {"--kv-budget", "SHARE|SIZE", "KV on the device of each session under a policy: 30%, or 512MiB.", set_kv_budget},
      {"--sessions", "N", "Answers under way at once, 1 to 64 (default 4).", number("--sessions", &Options::sessions, 64)},
      {"--folder", "DIR", "What prompts begin with, on disk: sessions are saved there when the server ends, and prompts found there.",
       words(&Options::folder)},
      {"--folder-bytes", "SIZE", "What --folder may have; what was used least recently leaves (default 4GiB).",
       [](Options& o, const std::string& text) { o.folder_bytes = bytes("--folder-bytes", text); }},
      {"--queue", "N", "Requests that wait for a session; more get 503 (default 64).", number("--queue", &Options::queue, 10000)},
      {"--connections", "N", "Connections at once (default 256).", number("--connections", &Options::connections, 10000)},
      {"--body", "SIZE", "The longest body of a request (default 4MiB).",
       [](Options& o, const std::string& text) { o.body_bytes = bytes("--body", text); }},
      {"--unread", "SIZE", "An answer rests while this much of it waits for a slow reader (default 4MiB).",
       [](Options& o, const std::string& text) { o.unread_bytes = bytes("--unread", text); }},
      {"--messages", "N", "The most messages of a request (default 4096).", number("--messages", &Options::messages, 1u << 20)},
      {"--max-tokens", "N", "The longest answer, whatever a request asks for; 0: the context's end (default 0).",
       number("--max-tokens", &Options::max_tokens, 1u << 30)},
      {"--read-seconds", "N", "Time for a request to arrive whole (default 30).", number("--read-seconds", &Options::read_seconds, 86400)},
      {"--answer-seconds", "N", "Time from a whole request to its answer's end (default 600).",
       number("--answer-seconds", &Options::answer_seconds, 86400)},
      {"--verbose", nullptr, "Print the library's log to standard error.", [](Options& o, const std::string&) { o.verbose = true; }},
      {"--help", nullptr, "Print this page.", [](Options& o, const std::string&) { o.help = true; }}};
  return options;
}

}  // namespace

bool is_loopback(const std::string& host) {
  in_addr four;
  in6_addr six;
  if (host == "localhost") return true;
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  return inet_pton(AF_INET6, host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

Options parse_options(const std::vector<std::string>& arguments) {
  Options o;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i], value;
    if (name == "-h") name = "--help";
    const bool is_option = name.compare(0, 2, "--") == 0;
    if (!is_option) {
      if (!o.model.empty()) throw std::invalid_argument("'" + name + "': one model at a time");
      o.model = name;
      continue;
    }
    const size_t equals = name.find('=');
    if (equals != std::string::npos) value = name.substr(equals + 1), name.resize(equals);
    const Option* option = nullptr;
    for (const Option& each : all_options())
      if (name == each.name) option = &each;
    if (!option) throw std::invalid_argument(name + ": no such option; see --help");
    if (!option->value && equals != std::string::npos) throw std::invalid_argument(name + " takes no value");
    if (option->value && equals == std::string::npos) {
      if (++i == arguments.size()) throw std::invalid_argument(name + " takes a value: " + option->value);
      value = arguments[i];
    }
    option->set(o, value);
  }
  if (o.help) return o;
  if (o.model.empty()) throw std::invalid_argument("MODEL is missing; see --help");
  if (o.sessions == 0 || o.connections == 0 || o.read_seconds == 0 || o.answer_seconds == 0 || o.body_bytes == 0)
    throw std::invalid_argument("--sessions, --connections, --body, --read-seconds and --answer-seconds are at least 1");
  if (!is_loopback(o.host) && o.api_key.empty())
    throw std::invalid_argument("--host " + o.host + " lets other machines in: it takes --api-key-file or --api-key");
  if (o.name.empty()) {
    o.name = o.model.substr(o.model.find_last_of('/') + 1);
    if (o.name.size() > 5 && o.name.compare(o.name.size() - 5, 5, ".gguf") == 0) o.name.resize(o.name.size() - 5);
  }
  return o;
}

std::string help_page() {
  std::string page =
      "orrery-server - an OpenAI-compatible server for one local model\n\n"
      "Usage: orrery-server MODEL.gguf [options]\n\n"
      "Prints one line when it listens. Ctrl-C and SIGTERM end it.\n\nOptions:\n";
  for (const Option& option : all_options()) {
    std::string left = std::string("  ") + option.name + (option.value ? std::string(" ") + option.value : "");
    left.resize(std::max<size_t>(left.size() + 2, 27), ' ');
    page += left + option.help + "\n";
  }
  return page;
}

}  // namespace orrery::server
