/* orrery_lab.h - what measures, compares and tunes Orrery: the regions of a plan, the header of a file, the table of KV policies, where KV lies,
 * head profiles, and grammars over tokens for samplers of the caller's own.
 *
 * A program that chats does without it: orrery.h is enough. The library is the same one, and so are the conventions of orrery.h. All of
 * these functions may change in a minor version (ORRERY_UNSTABLE).
 */
#ifndef ORRERY_LAB_H
#define ORRERY_LAB_H

#include "orrery.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Plan and file, in detail --------------------------------------------------------------------------------- */

#define ORRERY_REGION_WEIGHTS 0   /* the model's weights */
#define ORRERY_REGION_WORKSPACE 1 /* activations, scratch, logits */
#define ORRERY_REGION_KV 2        /* pages, or the resident KV of a policy */
#define ORRERY_REGION_SUMMARIES 3 /* digests, low-rank keys, compensation tokens: they stand for KV that is not on the device */
#define ORRERY_REGION_STAGING 4   /* memory through which KV and queries pass */
#define ORRERY_REGION_TABLES 5    /* host memory beside the KV */
ORRERY_UNSTABLE ORRERY_API const char *orrery_region_kind_name(uint32_t kind);

/* One region of a plan: memory that one part of the library takes. */
typedef struct orrery_plan_region {
  uint32_t struct_size;
  uint32_t kind;             /* ORRERY_REGION_: the kind of part that takes it */
  const char *name;          /* "page digests"; static */
  uint64_t device_bytes;     /* in the arena */
  uint64_t full_heads_bytes; /* of device_bytes: KV of heads that are full on the device */
  uint64_t reservoir_bytes;  /* in the reservoir */
  uint64_t host_bytes;       /* in other host memory, at most; of WEIGHTS: mapped, or read */
} orrery_plan_region;
ORRERY_UNSTABLE ORRERY_API void orrery_plan_region_init(orrery_plan_region *region, size_t struct_size);
/* Writes the plan of orrery_plan(), with its arguments, region by region. Regions without bytes are left out.
     regions   (capacity). _init has filled the first one; the others may hold anything. Every region then has the struct_size
               of the first one, which is also the distance between two. *n_regions depends on the options. See "Sizes out"
   The regions add up exactly to orrery_plan_result. Over all regions: device_bytes, reservoir_bytes, full_kv_bytes (full_heads_bytes).
   device_bytes of WEIGHTS, WORKSPACE, SUMMARIES, STAGING: weights_bytes, workspace_bytes, digests_bytes, staging_bytes; of KV, less
   full_kv_bytes: compressed_kv_bytes. host_bytes of WEIGHTS: weights_mapped_bytes; of all others: host_bytes.
   Errors are those of orrery_plan(), and of "Sizes out". */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_plan_regions(const orrery_source *source, const orrery_runtime_options *runtime,
                                                             const orrery_model_options *model, const orrery_session_options *session,
                                                             orrery_plan_region *regions, size_t capacity, size_t *n_regions,
                                                             orrery_error *error);

/* Describes a file's header as JSON: metadata (long arrays cut), tensors, parameters by type. "path": of the source, or "descriptor 5",
   "memory". See "Sizes out"; not NUL-terminated. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_inspect(const orrery_source *source, char *json, size_t capacity, size_t *json_bytes,
                                                        orrery_error *error);

/* ---- Layers and experts of a model -------------------------------------------------------------------------------- */

#define ORRERY_LAYER_ATTENTION 0 /* attention to all tokens */
#define ORRERY_LAYER_WINDOW 1    /* attention to the last `window` tokens */
#define ORRERY_LAYER_LATENT 2    /* attention over one row for all heads, which holds keys and values (MLA) */
#define ORRERY_LAYER_RECURRENT 3 /* a state of fixed size: delta net, Mamba, short convolution */
#define ORRERY_LAYER_NONE 4      /* nothing mixes its tokens: a feed-forward layer alone */
ORRERY_UNSTABLE ORRERY_API const char *orrery_layer_kind_name(uint32_t kind);

/* One layer of a model whose layers may differ. One token's KV takes n_kv_heads * orrery_kv_type_bytes(type, head_dim, value_dim) bytes in it. */
typedef struct orrery_layer_info {
  uint32_t struct_size;
  uint32_t kind;           /* ORRERY_LAYER_: what mixes its tokens */
  uint32_t n_heads;        /* of queries; 0: the layer has no attention */
  uint32_t n_kv_heads;     /* whose KV the layer keeps; 0 where it reads another layer's */
  uint32_t head_dim;       /* values of a key */
  uint32_t value_dim;      /* values of a value; 0: it is a part of the key (LATENT) */
  uint32_t window;         /* WINDOW: tokens; else 0 */
  int32_t kv_of;           /* the earlier layer whose KV it reads; -1: none */
  uint32_t n_experts;      /* of its mixture; 0: it has none */
  uint32_t n_used_experts; /* of them, for each token; without a shared expert */
  uint64_t state_bytes;    /* RECURRENT: its state in one session, however long; else 0 */
} orrery_layer_info;
ORRERY_UNSTABLE ORRERY_API void orrery_layer_info_init(orrery_layer_info *info, size_t struct_size);
/* Describes layer i, from 0 to n_layers - 1 of orrery_model_info; ORRERY_INVALID_ARGUMENT: there is no such layer. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_model_layer_info(const orrery_model *model, uint32_t i, orrery_layer_info *info,
                                                                 orrery_error *error);

/* Where the experts of a mixture lie, and what the link brought. An expert is one of one layer, with all of its matrices. */
typedef struct orrery_experts_info {
  uint32_t struct_size;
  uint32_t in_place;        /* 1: steps use each where it lies, and nothing moves */
  uint64_t n_experts;       /* of all layers; 0: the model is no mixture, or they all lie with its other weights */
  uint64_t n_on_device;     /* that the arena has room for */
  uint64_t device_bytes;    /* of the arena */
  uint64_t reservoir_bytes; /* of the reservoir */
  /* Since the model was opened, of the experts that layers asked for in steps of generated tokens: */
  uint64_t n_hits;                             /* in the arena already */
  uint64_t n_late;                             /* on their way, because the layer before had guessed them */
  uint64_t n_missed;                           /* neither */
  uint64_t n_expected;                         /* brought because a layer before had guessed them */
  uint64_t n_wasted;                           /* of n_expected: gone before a layer asked for them */
  uint64_t link_bytes;                         /* of all that were brought */
  uint64_t stall_us;                           /* time that layers waited for them */
  uint64_t prompt_link_bytes, prompt_stall_us; /* the same of prompts */
  /* With orrery_model_options.host_computes, where n_hits are what the device computed: */
  uint64_t n_by_host;                        /* that the processor computed */
  uint64_t host_us;                          /* time that it took */
  uint64_t prompt_n_by_host, prompt_host_us; /* the same of prompts: an expert counts for each token that chose it */
} orrery_experts_info;
ORRERY_UNSTABLE ORRERY_API void orrery_experts_info_init(orrery_experts_info *info, size_t struct_size);
/* Fills `info`. Never waits for a step. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_model_experts(const orrery_model *model, orrery_experts_info *info, orrery_error *error);

/* The layers whose matrices lie in the reservoir, or columns of whose feed-forward blocks do (host_computes), and what the link brought of them. A
   layer that steps of generated tokens and of prompts came to counts in each of them. */
typedef struct orrery_streaming_info {
  uint32_t struct_size;
  uint32_t in_place;        /* 1: steps use the matrices where they lie, and nothing moves */
  uint64_t n_layers;        /* that lie in the reservoir; 0: none */
  uint64_t device_bytes;    /* of the arena: room for two of them; and the blocks' columns there, with room for the others of
                                                  three layers */
  uint64_t reservoir_bytes; /* of the reservoir, of both */
  uint64_t n_steps_layers;  /* layers that steps of generated tokens came to, since the model was opened */
  uint64_t n_waited;        /* of them: not all there yet */
  uint64_t link_bytes;      /* that were brought for them */
  uint64_t stall_us;        /* time that steps waited for them */
  uint64_t prompt_link_bytes, prompt_stall_us; /* the same of prompts, to which columns cross, too */
  uint64_t n_divided;                          /* layers of whose blocks the processor computes columns for generated tokens; 0: none */
  uint64_t n_by_host;                          /* divided layers that steps of generated tokens came to */
  uint64_t host_us;                            /* time that the processor took */
} orrery_streaming_info;
ORRERY_UNSTABLE ORRERY_API void orrery_streaming_info_init(orrery_streaming_info *info, size_t struct_size);
/* Fills `info`. Never waits for a step. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_model_streaming(const orrery_model *model, orrery_streaming_info *info,
                                                                orrery_error *error);

/* ---- KV policies ------------------------------------------------------------------------------------------------ */

/* The table of policies, the one that sessions read, as JSON: [{"name", "method", "paper", "score", "allocate", "keep", "refresh", "device",
   "link", "options": [{"name", "default", "meaning"}], "page"}]. See "Sizes out"; not NUL-terminated. "device" and "link": what the policy costs
   there, besides the budget. A "default" in parentheses depends on the thing that it names. "page": the method, as text for people. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_policies(char *json, size_t capacity, size_t *json_bytes, orrery_error *error);

/* Writes how many tokens each KV head holds on the device, of the layers that policies divide: those with attention and, where their
   shapes differ, without a window. Allowed while a generation is unfinished; never waits.
     tokens   (such layers, n_kv_heads), *n of them; see "Sizes out". Compensation tokens do not count
   Under "full", every head holds n_tokens of orrery_stats. Under other policies, a head holds 0 tokens after a prompt, a rewind or
   a load, until a generated token is computed; under "auto" up to 8 tokens. A parked session's heads hold 0. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_session_residency(const orrery_session *session, uint32_t *tokens, size_t capacity,
                                                                  size_t *n, orrery_error *error);

/* The number of KV heads in each of HeteroCache's roles, as the session has them now; 0 under other policies, and before it has settled. */
typedef struct orrery_head_roles {
  uint32_t struct_size;
  uint32_t n_anchor_heads;    /* keep their resident KV */
  uint32_t n_volatile_heads;  /* keep all KV on the device */
  uint32_t n_pivot_heads;     /* keep all KV, and are checked for their satellites */
  uint32_t n_satellite_heads; /* are refreshed when their pivot drifts */
  uint32_t n_demoted_heads;   /* volatile heads that the budget made anchors */
} orrery_head_roles;
ORRERY_UNSTABLE ORRERY_API void orrery_head_roles_init(orrery_head_roles *roles, size_t struct_size);
/* Fills `roles`. Allowed while a generation is unfinished. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_session_head_roles(const orrery_session *session, orrery_head_roles *roles,
                                                                   orrery_error *error);

/* ---- Head profiles: the heads' roles, for KV policies that tell heads apart ------------------------------------- */

typedef struct orrery_calibration orrery_calibration;
typedef struct orrery_calibrate_options {
  uint32_t struct_size;
  uint32_t n_steps;            /* tokens decoded behind each text, 1 to 1024; default 99 */
  uint32_t top_k;              /* keys in a head's set, those that it attends to most; default 1024. At most a quarter of a text's tokens */
  uint32_t n_representatives;  /* heads of a layer, for policy "synckv"; 0 (default): 2 if it has 8 KV heads or more, else 1 */
  double tau_sim;              /* least overlap of two heads' sets in one cluster, median over steps; default .5 */
  double tau_stable;           /* least overlap of an anchor's set with its set of the prompt; default .5 */
  double tau_drift;            /* written to the profile, for "heterocache"; less than 0 (default): tau_stable */
  double full_share;           /* > 0: at most this share of the heads keeps the whole KV; the thresholds nearest to the given
                                     ones are used. 0 (default): the given thresholds */
  const char *note;            /* of the profile's origin, written to it; UTF-8; NULL: none */
  orrery_progress_fn progress; /* tokens read and decoded; NULL: none */
  void *progress_user;
  uint32_t kv_type; /* ORRERY_KV_ */
  uint32_t reserved;
} orrery_calibrate_options;
ORRERY_UNSTABLE ORRERY_API void orrery_calibrate_options_init(orrery_calibrate_options *options, size_t struct_size);

/* Finds the KV heads of the model that attend to the same keys, and the heads that keep attending to them while tokens are generated
   (HeteroCache, sections 3 and 4.1; SyncKV, section 4.1). And the heads that retrieve: in 256 random tokens that are read four times,
   they attend to the token after an earlier occurrence of their own (RazorAttention, section 3.2).
     tokens       of all texts, one text behind the other; n_tokens (n_texts): of each text, at least 16
   The same texts give the same profile under any number of threads. It takes the memory of one session of the longest text and n_steps,
   of at least 1,025 tokens. Layers with a window are not scored, unless all have one: policies skip them. ORRERY_CANCELLED: by `progress`. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_calibrate(orrery_model *model, const int32_t *tokens, const size_t *n_tokens,
                                                          size_t n_texts, const orrery_calibrate_options *options,
                                                          orrery_calibration **calibration, orrery_error *error);
/* Writes the profile as JSON, for orrery_session_options.head_profile. See "Sizes out"; not NUL-terminated. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_calibration_profile(const orrery_calibration *calibration, char *json, size_t capacity,
                                                                    size_t *json_bytes, orrery_error *error);
/* Writes the measurements behind the profile as JSON, for pictures. All are means over texts. See "Sizes out". "n_steps"; "text_tokens": [tokens of
   each text]; "top_k": [size of each text's sets]; "chance": overlap of random sets; "drift": [layer][head][step], overlap of the step's set with
   the prompt's; "layer_overlap": [layer][layer], the part of a head's set that its best match in the other layer has (on the diagonal: the best
   match of another head of the layer; null: the layer has one head); "windowed_layers": [layers with a sliding window]. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_calibration_steps(const orrery_calibration *calibration, char *json, size_t capacity,
                                                                  size_t *json_bytes, orrery_error *error);
ORRERY_UNSTABLE ORRERY_API void orrery_calibration_free(orrery_calibration *calibration);

/* Checks a profile, in that format or in the published HeteroCache format, and writes it as orrery_calibration_profile() does. A published
   profile fits every model of its shape. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_head_profile_import(const char *profile_json, char *json, size_t capacity,
                                                                    size_t *json_bytes, orrery_error *error);
/* Writes a profile of the gates that DuoAttention has learned (full_attention_heads.tsv).
     gates       text: a line for each layer with a number from 0 to 1 for each KV head, separated by tabs or spaces
     sparsity    0 to 1: heads whose gate is at least this quantile of all gates stay whole under "duoattention", as far as the
                 budget holds them. DuoAttention uses .5, and .75 for models without groups of query heads
   ORRERY_INVALID_ARGUMENT names line and column. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_head_profile_import_gates(const char *gates, double sparsity, char *json, size_t capacity,
                                                                          size_t *json_bytes, orrery_error *error);

/* ---- A folder of saved sessions ------------------------------------------------------------------------------------ */

/* A folder of saved sessions with a budget: each is a file NAME.orrery; other files are left alone. A prompt of a session with the option `folder` takes
   from there the KV of the longest beginning that a saved session computed as a prompt, in whole pages of 64 tokens: with the same model, KV type,
   adapters, version, backend and instruction set, and so with the same bits. A damaged page, or entry, is computed instead, and the log says so. Hashes
   find damage and are no signature: give a folder to sessions only where you trust whoever can write it. Any threads and processes may share it.
     path       made if it is not there (mode 0700). ORRERY_IO: it cannot be made, or listed
     max_bytes  of all entries; 0: no limit. Saving first removes the least recently used entries, by the time of a file's last change: each use changes it */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_folder_open(const char *path, uint64_t max_bytes, orrery_folder **folder,
                                                            orrery_error *error);
ORRERY_UNSTABLE ORRERY_API void orrery_folder_free(orrery_folder *folder);
/* Saves as orrery_session_save() does. name: UTF-8, 1 to 200 bytes, no control characters and none of /\:*?"<>|, not '.', ' ' or '~' first; it replaces
   an entry of that name. NULL: an unnamed entry (~ and 32 digits), which replaces shorter ones of the same prompt. ORRERY_INVALID_ARGUMENT: another name,
   or more than max_bytes (bytes_requested, bytes_available): nothing leaves. ORRERY_IO: the folder cannot be written. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_folder_save(orrery_folder *folder, orrery_session *session, const char *name,
                                                            orrery_error *error);
/* Loads as orrery_session_load() does. ORRERY_IO: there is no such entry. ORRERY_BAD_SESSION: it is damaged, or not for this session. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_folder_load(orrery_folder *folder, orrery_session *session, const char *name,
                                                            orrery_error *error);
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_folder_remove(orrery_folder *folder, const char *name,
                                                              orrery_error *error); /* ORRERY_IO: none such */
/* Writes the entries as a JSON array, the last used first: "name", "bytes", "used" (seconds since 1970), "tokens", "shared_tokens" (what prompts may
   take), "model" (fingerprint); "error" instead of the last three where the entry is damaged. See "Sizes out". */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_folder_list(const orrery_folder *folder, char *json, size_t capacity, size_t *json_bytes,
                                                            orrery_error *error);

/* ---- Grammars over tokens --------------------------------------------------------------------------------------- */

/* A grammar over tokens, for samplers of the caller's own and for checks. One thread at a time uses a matcher: else ORRERY_BUSY. */
typedef struct orrery_matcher orrery_matcher;
/* `options`: grammar and its grammar_ fields but grammar_tokens, with the errors of orrery_generate(); the others are not read. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_matcher_create(const orrery_vocab *vocab, const orrery_generate_options *options,
                                                               orrery_matcher **matcher, orrery_error *error);
/* Sets bit i of words[w] if token 32 w + i may come next. End-of-generation tokens may come where the text may end. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_matcher_mask(orrery_matcher *matcher, uint32_t *words, size_t capacity, size_t *n_words,
                                                             orrery_error *error);
/* Accepts tokens up to the first one that the grammar refuses; *n_accepted is their number. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_matcher_accept(orrery_matcher *matcher, const int32_t *tokens, size_t n_tokens,
                                                               size_t *n_accepted, orrery_error *error);
/* Keeps the first n_tokens of all accepted tokens. ORRERY_INVALID_ARGUMENT: the matcher has accepted fewer. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_matcher_rewind(orrery_matcher *matcher, size_t n_tokens, orrery_error *error);
/* Gives the tokens of the text that every answer continues with; none where the grammar leaves a choice. See "Sizes out". */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_matcher_forced(orrery_matcher *matcher, int32_t *tokens, size_t capacity, size_t *n_tokens,
                                                               orrery_error *error);
/* Reads a text from its beginning. Its first *matched_bytes bytes can begin an answer; *complete is 1 if the whole text is an answer. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_matcher_match(orrery_matcher *matcher, const char *text, size_t text_bytes,
                                                              size_t *matched_bytes, uint32_t *complete, orrery_error *error);
/* Describes the grammar as JSON: {"rules", "states", "bytes", "notices": [keywords that do not constrain]}. See "Sizes out". */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_matcher_describe(orrery_matcher *matcher, char *json, size_t capacity, size_t *json_bytes,
                                                                 orrery_error *error);
ORRERY_UNSTABLE ORRERY_API void orrery_matcher_free(orrery_matcher *matcher);

#ifdef __cplusplus
}
#endif
#endif /* ORRERY_LAB_H */
