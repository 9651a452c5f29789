// Requests for embeddings (OpenAI's) and for a ranking (Jina's and Cohere's): every field is checked, or refused by its name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/refusal.h"

namespace orrery::server {

struct TextsToEmbed {
  std::vector<std::string> texts;  // at least one, none empty
  uint32_t n_dimensions = 0;       // 0: all
  bool base64 = false;
};
struct TextsToRank {
  std::string query;
  std::vector<std::string> texts;  // at least one
  uint32_t most = 0;               // of the best ones
  bool with_texts = false;
};

TextsToEmbed read_embeddings(const Json& body, const Options& options);
TextsToRank read_rerank(const Json& body, const Options& options);

}  // namespace orrery::server
