// The supported families, a file each: which blocks a family's layers have, by the field's names. Everything else (sizes, scaling, windows)
// is read from the file by the blocks. To add a family whose blocks exist: its file, its line here, its row in families.cpp, and goldens by
// tests/golden/make_model_goldens.py.
#pragma once

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/gguf/gguf.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/description/description.h"

namespace orrery::model {

struct Family {
  const char* name;                 // general.architecture
  Status (*describe)(Reading& in);  // reads the layers' shapes and the RoPE from the file's keys
  const char* norm_eps = nullptr;   // read_sizes()
};

Status describe_llama(Reading& in);
Status describe_qwen2(Reading& in);
Status describe_qwen3(Reading& in);
Status describe_qwen3moe(Reading& in);
Status describe_qwen35(Reading& in);
Status describe_qwen35moe(Reading& in);
Status describe_qwen3next(Reading& in);
Status describe_lfm2(Reading& in);
Status describe_lfm2moe(Reading& in);
Status describe_nemotron_h_moe(Reading& in);
Status describe_gemma3(Reading& in);
Status describe_gemma4(Reading& in);
Status describe_gpt_oss(Reading& in);
Status describe_mistral3(Reading& in);
Status describe_muse_glimmer(Reading& in);
Status describe_phi3(Reading& in);
Status describe_seed_oss(Reading& in);
Status describe_smollm3(Reading& in);
Status describe_deepseek2(Reading& in);
Status describe_glm4(Reading& in);
Status describe_chatglm(Reading& in);
Status describe_bert(Reading& in);
Status describe_nomic_bert(Reading& in);
Status describe_gemma_embedding(Reading& in);

Span<const Family> families();

// Refuses with unsupported_architecture what we do not run (naming it), also a key that nobody here understands, and with
// bad_model what contradicts itself. more: families beside those of the table; they come first.
Result<Description> read_description(const gguf::File& file, const RopeOverride& rope, Span<const Family> more = {});

}  // namespace orrery::model
