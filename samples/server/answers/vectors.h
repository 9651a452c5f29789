// Embeddings and rankings: a job's body to the library's call, and its numbers to JSON.
#pragma once

#include <functional>
#include <string>

#include "answers/job.h"
#include "base/metrics.h"

namespace orrery::server {

// The body of the answer to a job of kind embeddings or rerank. goes_on: asked between two parts of the work; false cancels
// (ORRERY_CANCELLED). Throws a Refusal or an ApiError.
std::string vectors_body(orrery_model* model, const Job& job, const Options& options, const std::function<bool()>& goes_on,
                         Metrics* metrics);

}  // namespace orrery::server
