// The command line: what is served, where, and every limit. Units are in the names.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace orrery::server {

struct Options {
  std::string model;  // path of a GGUF file
  std::string name;   // of the model in requests; empty: the file's name without .gguf
  std::string host = "127.0.0.1";
  int port = 8080;                                      // 0: a free one
  std::string api_key;                                  // empty: none is wanted
  std::string allow_origin;                             // of web pages that may ask: empty: none, "*": all
  std::vector<std::pair<std::string, float>> adapters;  // files and scales
  std::string template_source;                          // a Jinja template instead of the file's; empty: the file's

  int threads = 0;
  std::string backend, policy, kv_type;  // empty: the library's default
  uint64_t device_budget_bytes = 0;      // 0: the library's default
  uint64_t kv_budget_bytes = 0;          // of each session; 0: kv_budget_share
  float kv_budget_share = 0;             // 0: not given
  uint32_t context_tokens = 8192;        // of each session; 0: as trained
  bool context_given = false;            // else at most as trained
  uint32_t sessions = 4;                 // answers under way at once

  std::string folder;  // of saved sessions; empty: none
  uint64_t folder_bytes = uint64_t{4} << 30;

  uint32_t queue = 64;  // requests that wait for a session
  uint32_t connections = 256;
  uint64_t body_bytes = 4 << 20;
  uint64_t unread_bytes = 4 << 20;  // of one answer that wait for a slow reader; then the answer rests
  uint32_t messages = 4096;         // of one request
  uint32_t max_tokens = 0;          // of one answer; 0: the context's end
  uint32_t read_seconds = 30;       // for a request to arrive, whole
  uint32_t answer_seconds = 600;    // from a whole request to the end of its answer's work
  bool verbose = false;
  bool help = false;
};

// Throws std::invalid_argument with a sentence for people.
Options parse_options(const std::vector<std::string>& arguments);
std::string help_page();
bool is_loopback(const std::string& host);

}  // namespace orrery::server
