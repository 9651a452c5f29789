// Makes a body a request: JSON, fields, the prompt's tokens.
#pragma once

#include "answers/job.h"

namespace orrery::server {

class Reader {
 public:
  Reader(const Options& options, const orrery_vocab* vocab, uint32_t context_tokens);
  // Fills the job's request and prompt. Throws a Refusal or an ApiError.
  void read(Job* job) const;

 private:
  std::string render(const Request& request) const;

  const Options& options_;
  const orrery_vocab* vocab_;
  uint32_t context_tokens_;
  orrery_vocab_info info_;
};

// The template's options of a request. Points into both.
orrery_template_options template_options(const Request& request, const Options& options);

}  // namespace orrery::server
