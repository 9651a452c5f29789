// The table of families, and the way from a file to a description.
#include "runtime/model/families/family.h"

#include <algorithm>
#include <iterator>

#include "runtime/model/blocks/encoder/score_head.h"
#include "runtime/model/blocks/vocabulary.h"

namespace orrery::model {

namespace {

constexpr Family kFamilies[] = {
    {"llama", describe_llama},
    {"qwen2", describe_qwen2},
    {"qwen3", describe_qwen3},
    {"qwen3moe", describe_qwen3moe},
    {"qwen35", describe_qwen35},
    {"qwen35moe", describe_qwen35moe},
    {"qwen3next", describe_qwen3next},
    {"phi3", describe_phi3},
    {"glm4", describe_glm4},
    {"chatglm", describe_chatglm},
    {"deepseek2", describe_deepseek2},
    {"gemma3", describe_gemma3},
    {"gemma4", describe_gemma4},
    {"mistral3", describe_mistral3},
    {"muse-glimmer", describe_muse_glimmer},
    {"seed_oss", describe_seed_oss},
    {"smollm3", describe_smollm3},
    {"gpt-oss", describe_gpt_oss},
    {"lfm2", describe_lfm2},
    {"lfm2moe", describe_lfm2moe},
    {"bert", describe_bert, "attention.layer_norm_epsilon"},
    {"nomic-bert", describe_nomic_bert, "attention.layer_norm_epsilon"},
    {"gemma-embedding", describe_gemma_embedding},
    {"nemotron_h_moe", describe_nemotron_h_moe, "attention.layer_norm_epsilon"},
};

Result<const Family*> find_family(const gguf::File& file, Span<const Family> more) {
  ORRERY_ASSIGN(const std::string_view name, file.required_string("general.architecture"));
  std::string known;
  for (const Span<const Family>& all : {more, families()})
    for (const Family& family : all) {
      if (name == family.name) return &family;
      known += std::string(known.empty() ? "" : ", ") + family.name;
    }
  return error(Code::unsupported_architecture, "%s: architecture '%.*s' is not supported; these are: %s", file.path().c_str(),
               static_cast<int>(std::min<size_t>(name.size(), 64)), name.data(), known.c_str());
}

}  // namespace

Span<const Family> families() { return {kFamilies, std::size(kFamilies)}; }

Result<Description> read_description(const gguf::File& file, const RopeOverride& rope, Span<const Family> more) {
  ORRERY_ASSIGN(const Family* family, find_family(file, more));
  ORRERY_ASSIGN(const std::string_view name, file.get_string("general.name", ""));
  Description d;
  d.family = family->name;
  d.name = std::string(name);

  ORRERY_TRY(check_general_keys(file));

  Keys keys(file, family->name);
  Reading in{keys, rope, d};
  ORRERY_TRY(read_sizes(in, family->norm_eps));
  ORRERY_TRY(family->describe(in));
  ORRERY_TRY(vocabulary::read(in));
  if (d.pooling == Pooling::rank) ORRERY_TRY(score_head::read(in));
  group_layers(&d);
  if (d.groups.size() > static_cast<size_t>(kMostKvGroups))
    return error(Code::unsupported_architecture, "%s: its layers have %zu pairs of a shape of KV heads and a window; at most %d are run",
                 file.path().c_str(), d.groups.size(), kMostKvGroups);
  ORRERY_TRY(keys.refuse_the_rest(d));
  return d;
}

}  // namespace orrery::model
