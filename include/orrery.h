/* orrery.h - the public interface of Orrery, a local inference runtime for long contexts. orrery_lab.h has what measures and tunes it.
 *
 * An application makes a runtime (threads, device memory), opens a model (a GGUF file), opens a session on it (one
 * conversation and its KV cache), and pulls events from a generation until it is done:
 *
 *     orrery_runtime *rt;  orrery_model *model;  orrery_session *chat;  orrery_generation *answer;
 *     orrery_error err;    orrery_error_init(&err, sizeof err);
 *     orrery_source file;  orrery_source_init(&file, sizeof file);    file.path = "model.gguf";
 *     if (orrery_runtime_create(NULL, &rt, &err)) ...                 // every NULL options pointer means the defaults
 *     if (orrery_model_open(rt, &file, NULL, &model, &err)) ...
 *     if (orrery_session_open(model, NULL, &chat, &err)) ...
 *     orrery_session_add_message(chat, "user", "Why is the sky blue?", &err);
 *     orrery_generate(chat, NULL, &answer, &err);
 *     orrery_event ev;  orrery_event_init(&ev, sizeof ev);
 *     while (orrery_next(answer, &ev, &err) == ORRERY_OK && ev.type != ORRERY_EVENT_DONE)
 *         if (ev.type == ORRERY_EVENT_TEXT) fwrite(ev.text, 1, ev.text_bytes, stdout);
 *     if (err.status != ORRERY_OK) ...                                // errors of the conversation arrive here
 *     orrery_generation_free(answer);  orrery_session_free(chat);  orrery_model_free(model);  orrery_runtime_free(rt);
 *
 * Conventions
 *   Errors     A function that can fail returns an orrery_status; ORRERY_OK is 0. Its last parameter is an orrery_error that the caller
 *              owns, and receives the detail; NULL: the detail is not wanted. A failed call changes nothing, and sets its out parameters to
 *              NULL or 0. The library never aborts, exits, prints or installs a handler.
 *   Structs    Every struct that a caller hands over begins with struct_size. Its _init function takes sizeof the struct as the caller was
 *              compiled, sets struct_size, and fills in the defaults. Set fields after it. Reserved fields are zero. A call returns
 *              ORRERY_INVALID_ARGUMENT for a struct whose struct_size no version has had, of which 0 is one; of an orrery_error it then
 *              writes nothing.
 *   Versions   An older program with a newer library: _init gives the program's fields their defaults, and writes nothing behind them. Options that
 *              the program lacks have their defaults; results, events and errors are filled as far as its structs reach. It skips types of events,
 *              and shows names, that it does not know. A newer program with an older library: options that the library does not know must be 0, as
 *              _init leaves them; else ORRERY_UNSUPPORTED, with the byte. Fields of results that it does not know stay 0. A constant that it lacks
 *              is ORRERY_INVALID_ARGUMENT, with the number. A function that it lacks is not found by the loader. A function has changed:
 *              ORRERY_ABI_VERSION differs from orrery_abi_version(): do not call on. ORRERY_UNSTABLE marks functions that change without that.
 *   Handles    Handles count references: free them in any order. NULL is accepted. A session keeps its model, and a model keeps its runtime.
 *   Strings    Strings are UTF-8. The library copies inputs, unless a function says otherwise. Each function says how long a `const char *` result
 *              lives. Results are whole UTF-8, also where a file is not: bytes that are not UTF-8 become U+FFFD, or '?' in error and log messages.
 *              An input that is not UTF-8 is ORRERY_INVALID_ARGUMENT, and the message names the input. Three strings are bytes: paths (on Windows
 *              they are UTF-8), the text of orrery_tokenize(), and the text of tokens (orrery_detokenize(), `text` of a TOKEN event).
 *   Sizes out  A function that fills a caller's buffer takes the buffer's capacity, and sets *n to the size that it needs. NULL with capacity 0
 *              asks for the size alone. A buffer that is too small stays as it is, and the function returns ORRERY_INVALID_ARGUMENT.
 *   Callbacks  A log, progress, hook or event function must not free the handle that calls it. It may call orrery_cancel() and
 *              orrery_session_cancel(). A log function calls nothing of this header: a step may wait for it. A callback returns: it must not leave
 *              by longjmp() or by an exception. After a longjmp() the session stays ORRERY_BUSY for good, and its memory is lost. An exception of a
 *              hook, progress or event function ends the call with ORRERY_INTERNAL; an exception of a log function may end the process.
 *   Threads    Any number of threads may use a runtime, a model or a vocabulary. A session and its generations belong to one thread at a
 *              time: a second call meanwhile returns ORRERY_BUSY. Any thread may call orrery_session_cancel() while the session's handle is
 *              held, and orrery_cancel() while the generation's is. Callbacks run on the thread that called in. Threads that want a token
 *              of sessions of one model at the same time share a step.
 *   Memory     Opening a session reserves the memory that it needs, as orrery_plan() foretells. Generating allocates nothing on the device
 *              (a GPU's driver does: driver_bytes). If the system does not lock a part of a policy's KV for a GPU, the call that needs it
 *              returns ORRERY_OUT_OF_PINNED_MEMORY, and the session stays as it was. A refusal names the option that helps. The library's
 *              allocator is its own, never the application's operator new. host_bytes counts what it has allocated for a handle: not the
 *              arena, the reservoir, mapped files and weights that were read. Where a build has no allocator of its own (sanitizers,
 *              systems other than Linux), host_bytes is 0.
 *   fork()     A child process must not use its parent's handles. It may free them, in any order: that returns at once, and gives no memory back.
 *              orrery_cancel() and orrery_session_cancel() do nothing. Other calls with a runtime, a model, a session or a generation of the parent
 *              return ORRERY_INVALID_ARGUMENT. Vocabularies and calibrations have no threads, and stay usable. The child may use what it creates
 *              itself, but no GPU ("cuda": ORRERY_UNSUPPORTED) if its parent has asked for one. exec() closes every descriptor of the library.
 *   Signals    The library's threads block all signals. A system call that a signal interrupts is repeated. A signal handler may call
 *              orrery_cancel(), and nothing else of this header.
 *   Suspending While the machine sleeps, no time limit runs, and no figure in *_us grows. A GPU may be lost: see "Lost GPU".
 *   Floats     Every call rounds to nearest, with subnormal numbers and without traps, whichever settings the thread has (fesetround(),
 *              FTZ, DAZ, feenableexcept()); on return it has them and its flags back. Callbacks run with ours.
 *   Stacks     1 MiB of stack is enough for every call, without sanitizers; callbacks come on top.
 *   Lost GPU   After ORRERY_DEVICE_LOST every step of that runtime fails in the same way. Messages can still be read
 *              (orrery_session_message()); KV cannot be saved. Free the generations, sessions, models and the runtime, in any order, and
 *              create them again. That fails while PyTorch, say, holds the context. Other errors leave all as it was.
 * C99 and C++17. Versioned by ORRERY_ABI_VERSION: bindings compare it with orrery_abi_version() when they load the library.
 */
#ifndef ORRERY_H
#define ORRERY_H

#include <stddef.h>
#include <stdint.h>

/* On Windows, a program that links the static library defines ORRERY_STATIC before it includes this header. */
#if defined(_WIN32) && defined(ORRERY_STATIC)
#define ORRERY_API
#elif defined(_WIN32)
#if defined(ORRERY_BUILD)
#define ORRERY_API __declspec(dllexport)
#else
#define ORRERY_API __declspec(dllimport)
#endif
#else
#define ORRERY_API __attribute__((visibility("default")))
#endif

/* Marks a function whose name, arguments or meaning may still change in a minor version. A function without it changes
   with ORRERY_ABI_VERSION alone. The marker is empty; bindings/generate.py keeps the list of the others. */
#define ORRERY_UNSTABLE

#ifdef __cplusplus
extern "C" {
#endif

#define ORRERY_VERSION_MAJOR 0
#define ORRERY_VERSION_MINOR 1
#define ORRERY_VERSION_PATCH 0
#define ORRERY_ABI_VERSION 2u

ORRERY_API uint32_t orrery_abi_version(void);      /* ORRERY_ABI_VERSION of the library that is loaded */
ORRERY_API const char *orrery_version(void);       /* "0.1.0"; static */
ORRERY_API const char *orrery_build_info(void);    /* compiler, instruction sets; "cuda", "mimalloc" where the build has them; static */

/* ---- Status ------------------------------------------------------------------------------------------------ */
typedef int32_t orrery_status;
#define ORRERY_OK 0
#define ORRERY_INVALID_ARGUMENT 1          /* a NULL that may not be, a value out of range, an unknown name */
#define ORRERY_OUT_OF_DEVICE_MEMORY 2      /* does not fit the arena: bytes_requested, bytes_available */
#define ORRERY_OUT_OF_PINNED_MEMORY 3      /* the system refuses to lock that many bytes: bytes_requested; bytes_available: the
                                              most that a process may lock */
#define ORRERY_OUT_OF_HOST_MEMORY 4
#define ORRERY_CONTEXT_FULL 5              /* the prompt is longer than the session's context */
#define ORRERY_CANCELLED 6                 /* by orrery_cancel() or a callback; the handle stays usable */
#define ORRERY_BAD_MODEL 7                 /* the file is damaged or contradicts itself: file offset, key or tensor */
#define ORRERY_UNSUPPORTED_ARCHITECTURE 8  /* named in the message */
#define ORRERY_UNSUPPORTED_QUANTIZATION 9
#define ORRERY_UNSUPPORTED_TEMPLATE 10     /* the chat template uses a construct that is not supported: line, column */
#define ORRERY_UNSUPPORTED 11              /* anything else that this build cannot do */
#define ORRERY_BUSY 12                     /* the session is in use by another call or an unfinished generation */
#define ORRERY_DEVICE_LOST 13
#define ORRERY_IO 14                       /* native_code is the system's error number */
#define ORRERY_BAD_SESSION 15              /* a session file is damaged, or another model's */
#define ORRERY_INTERNAL 16                 /* a bug of ours: please report the message */

/* The status's name, "ORRERY_BAD_MODEL". The result of this and of every other _name function is static and never NULL: the
   constant as it is spelt here, or "unknown status" (status being the kind) for a number that this version does not know. */
ORRERY_API const char *orrery_status_name(orrery_status status);

typedef struct orrery_error {
  uint32_t struct_size;
  int32_t status;
  int64_t native_code;         /* the system's or the device's own error number; 0: none */
  uint64_t bytes_requested;    /* of a refused allocation or budget */
  uint64_t bytes_available;
  uint64_t offset;             /* in the file */
  uint32_t line, column;       /* in the chat template or JSON, from 1 */
  char message[1024];          /* whole UTF-8, NUL-terminated, one line: the problem, its place, found, expected */
  char option[48];             /* the field of the options, or of orrery_source, that is at fault: "kv_type"; "": none. NUL-terminated */
} orrery_error;
ORRERY_API void orrery_error_init(orrery_error *error, size_t struct_size);

/* ---- Runtime: threads, the device and its arena ------------------------------------------------------------ */
typedef struct orrery_runtime orrery_runtime;

#define ORRERY_LOG_ERROR 1
#define ORRERY_LOG_WARNING 2
#define ORRERY_LOG_INFO 3
#define ORRERY_LOG_DEBUG 4
#define ORRERY_LOG_TRACE 5   /* the CPU backend also measures its decode steps, which slows them a little. When an answer ends, messages
                                "trace {...}" say where the time went: JSON of all steps and of each operation. The keys may change */
ORRERY_API const char *orrery_log_level_name(int32_t level);
/* `message`: one line, NUL-terminated; lives during the call. Called on any thread that calls the library. */
typedef void (*orrery_log_fn)(void *user, int32_t level, const char *message);

#define ORRERY_RESERVOIR_PAGEABLE 0
#define ORRERY_RESERVOIR_PINNED 1  /* opening a session locks and clears its part of the reservoir: a device copies from it fastest.
                                      ORRERY_OUT_OF_PINNED_MEMORY where the system refuses; the message says how to raise its limit */
ORRERY_API const char *orrery_reservoir_mode_name(uint32_t mode);

#define ORRERY_PRIORITY_NORMAL 0   /* as the thread that creates the runtime, or changes it, has it */
#define ORRERY_PRIORITY_LOW 1      /* the system prefers other programs */
ORRERY_API const char *orrery_priority_name(int32_t priority);

/* Devices: the GPUs that the driver knows. Every call asks the driver, which takes time to start at the first call. A build
   without CUDA has no devices, nor has a machine without a driver. */
typedef struct orrery_device_info {
  uint32_t struct_size;
  uint32_t architecture;        /* compute capability times 10: 89 is 8.9 */
  uint64_t memory_bytes;        /* in all, used or not */
  char name[128];               /* "NVIDIA GeForce RTX 4090"; whole UTF-8, NUL-terminated */
  char refused[256];            /* why no runtime can use it: a sentence; "": one can */
} orrery_device_info;
ORRERY_UNSTABLE ORRERY_API void orrery_device_info_init(orrery_device_info *info, size_t struct_size);
ORRERY_UNSTABLE ORRERY_API size_t orrery_devices(void);   /* the number of devices, usable or not */
/* Describes device `index`, 0 to orrery_devices() - 1 in the driver's order; ORRERY_INVALID_ARGUMENT: there is no such device. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_device_get_info(size_t index, orrery_device_info *info, orrery_error *error);

typedef struct orrery_runtime_options {
  uint32_t struct_size;
  int32_t n_threads;            /* 1 to 1024. 0: one for each core that this process may use, less one where there are four or more, and no
                                   more than a container's CPU quota grants. On a GPU: while a model is loaded; 0: up to eight */
  const char *backend;          /* "auto" (default): a GPU where there is one, unless cpu_path is given; "cpu"; "gpu": ORRERY_UNSUPPORTED
                                   where "auto" would take the processor, and the message says why; "cuda" */
  const char *cpu_path;         /* instruction set: "auto" (default), "plain", "avx2", "avx2vnni", "avx512", "avx512bf16", "amx", "neon" */
  uint64_t device_budget_bytes; /* size of the device arena. 0 on a GPU: its free memory less driver_bytes and 256 MiB. 0 on the CPU
                                   backend: half of the machine's memory, or of a container's limit (control group) if that is less, and
                                   at most a quarter of the rest under RLIMIT_AS and RLIMIT_DATA. The CPU commits the arena lazily */
  orrery_log_fn log;            /* NULL: silent */
  void *log_user;
  int32_t log_level;            /* the most verbose level wanted; default ORRERY_LOG_WARNING */
  uint32_t max_sessions;        /* sessions that may hold device memory at once, over all models; default 16 */
  uint64_t reservoir_bytes;     /* host memory for the KV that policies keep off the device; 0: as device_budget_bytes on the CPU backend */
  /* A simulated link for measurement: KV that is fetched for generated tokens arrives no faster than this. Results stay the same. */
  uint64_t link_bytes_per_second; /* 0: as fast as it goes */
  uint32_t link_latency_us;     /* of each request, beside its bytes' time */
  uint32_t reservoir_mode;      /* ORRERY_RESERVOIR_; default PAGEABLE. Does not change results */
  int32_t device;               /* which GPU: an index of orrery_device_get_info(); default -1: the first that is not refused.
                                   ORRERY_UNSUPPORTED: no such GPU, or a refused one. The CPU backend ignores it */
  int32_t priority;             /* of the CPU backend's threads: ORRERY_PRIORITY_; default NORMAL. The calling thread takes
                                   part in the work, and keeps its own priority */
} orrery_runtime_options;
ORRERY_API void orrery_runtime_options_init(orrery_runtime_options *options, size_t struct_size);

ORRERY_API orrery_status orrery_runtime_create(const orrery_runtime_options *options, orrery_runtime **runtime, orrery_error *error);
ORRERY_API void orrery_runtime_free(orrery_runtime *runtime);   /* in a child of fork(): see "fork()" */

/* Changes how many threads the CPU backend computes with, and their priority, between two steps: a step that runs on another
   thread ends first. Results are the same to the last bit. Allowed from any thread, but not from a callback.
     n_threads  at most 1024, the processors that the process had when the runtime was created, or the threads that it was created with
                if they are more. 0: the default of orrery_runtime_options
     priority   ORRERY_PRIORITY_
   ORRERY_INVALID_ARGUMENT: a value out of range; the message names the largest. ORRERY_OUT_OF_HOST_MEMORY: the system starts
   no more threads; the old ones stay. ORRERY_UNSUPPORTED: a GPU computes. */
ORRERY_UNSTABLE
ORRERY_API orrery_status orrery_runtime_set_threads(orrery_runtime *runtime, int32_t n_threads, int32_t priority, orrery_error *error);

/* Whether a GPU computes, and if not, why the processor does. */
#define ORRERY_GPU_USED 0
#define ORRERY_GPU_NOT_WANTED 1      /* the options name the processor: `backend` or cpu_path */
#define ORRERY_GPU_NOT_BUILT 2       /* the library is built without a GPU's backend */
#define ORRERY_GPU_NO_DRIVER 3       /* the machine has no driver */
#define ORRERY_GPU_DRIVER_TOO_OLD 4  /* for this library; gpu_reason says what was found and what is needed */
#define ORRERY_GPU_NONE 5            /* the driver knows no GPU */
#define ORRERY_GPU_REFUSED 6         /* there is a GPU, and this library cannot use it */
ORRERY_UNSTABLE ORRERY_API const char *orrery_gpu_use_name(uint32_t gpu_use);

typedef struct orrery_runtime_info {
  uint32_t struct_size;
  int32_t n_threads;
  const char *backend;          /* "cpu", "cuda"; static */
  const char *path;             /* "avx512", "sm_89"; static */
  uint64_t arena_bytes;
  uint64_t arena_used_bytes;    /* of the regions of models and sessions, now */
  uint64_t host_bytes;          /* allocated for the runtime itself, now; see "Memory" */
  uint64_t host_peak_bytes;     /* the most that host_bytes has been */
  uint64_t pinned_bytes;        /* host memory that is locked now: of the reservoir, and buffers for a GPU */
  uint64_t driver_bytes;        /* of a GPU: an estimate of what its driver takes beside the arena, for graphs and cuBLAS */
  const char *gpu_reason;       /* why no GPU computes: a sentence for people; "" if one does; as long as the runtime */
  uint32_t gpu_use;             /* ORRERY_GPU_ */
  uint32_t reserved;
} orrery_runtime_info;
ORRERY_API void orrery_runtime_info_init(orrery_runtime_info *info, size_t struct_size);
ORRERY_API orrery_status orrery_runtime_get_info(const orrery_runtime *runtime, orrery_runtime_info *info, orrery_error *error);

/* ---- Source: where a GGUF file lies --------------------------------------------------------------------------- */
#define ORRERY_SOURCE_PATH 0    /* the file at `path`. A split model opens by this kind alone: else it is ORRERY_BAD_MODEL */
#define ORRERY_SOURCE_FD 1      /* the open file `fd`, or a part of it, such as an asset that an archive (APK) stores uncompressed */
#define ORRERY_SOURCE_MEMORY 2  /* memory of the caller */
ORRERY_API const char *orrery_source_kind_name(uint32_t kind);

/* The source of a model, or of a vocabulary alone. A call reads the fields of its kind, and copies the struct and `path`.
   ORRERY_IO: the file cannot be read, or fd is not open or not a file. ORRERY_BAD_MODEL: the bytes are no whole GGUF file; offset counts from
   its first byte. ORRERY_INVALID_ARGUMENT: a pointer of the kind is NULL, fd is negative or its file shorter, a field of another kind is set. */
typedef struct orrery_source {
  uint32_t struct_size;
  uint32_t kind;                  /* ORRERY_SOURCE_; default PATH */
  const char *path;               /* PATH: the file's name; of a split model, any of its files */
  const void *memory;             /* MEMORY: (memory_bytes) the file's bytes; they begin at a multiple of 8. The caller keeps the memory. After the
                                     call nothing uses it, except a model that was opened with ORRERY_LOAD_MAP (the default): then it must
                                     stay there, and unchanged, until the model, its sessions and their generations have been freed. Other
                                     contents change answers, and nothing else */
  uint64_t memory_bytes;
  uint64_t fd_offset;             /* FD: the byte of `fd` where the GGUF file begins. With ORRERY_LOAD_MAP, a multiple of 8. Default 0 */
  uint64_t fd_bytes;              /* FD: the GGUF file's bytes; 0 (default): up to the end of `fd` */
  int32_t fd;                     /* FD: a regular file or memory file (memfd_create), open for reading. A call does not use or move its position;
                                     the caller keeps it, and may close it after the call. Default -1 */
  uint32_t reserved;
} orrery_source;
ORRERY_API void orrery_source_init(orrery_source *source, size_t struct_size);

/* ---- Vocabulary: tokenizer and chat template, on their own -------------------------------------------------- */
typedef struct orrery_vocab orrery_vocab;
/* Opens the vocabulary of a GGUF file, which needs a tokenizer, and no tensors. Errors are those of orrery_source; ORRERY_BAD_MODEL: the file
   has no tokenizer. */
ORRERY_API orrery_status orrery_vocab_open(const orrery_source *source, orrery_vocab **vocab, orrery_error *error);
ORRERY_API void orrery_vocab_free(orrery_vocab *vocab);

#define ORRERY_TOKENIZE_BOS 1u       /* begin with the vocabulary's BOS token, if it has one */
#define ORRERY_TOKENIZE_SPECIAL 2u   /* text that spells a control token is that token; else it stays text */
/* Writes the ids of text[0..text_bytes) to tokens[0..capacity); *n_tokens: how many there are. See "Sizes out". */
ORRERY_API orrery_status orrery_tokenize(const orrery_vocab *vocab, const char *text, size_t text_bytes, uint32_t flags,
                                         int32_t *tokens, size_t capacity, size_t *n_tokens, orrery_error *error);

#define ORRERY_DETOKENIZE_SPECIAL 1u /* spell control tokens out; else they are left out */
/* The bytes that the tokens stand for: not NUL-terminated, possibly ending inside a character. See "Sizes out". */
ORRERY_API orrery_status orrery_detokenize(const orrery_vocab *vocab, const int32_t *tokens, size_t n_tokens, uint32_t flags,
                                           char *text, size_t capacity, size_t *text_bytes, orrery_error *error);

typedef struct orrery_vocab_info {
  uint32_t struct_size;
  int32_t n_tokens;
  int32_t bos, eos, eot, eom, unknown, padding;  /* -1 where the vocabulary has none */
  uint32_t add_bos;             /* 1: the model expects BOS before a raw prompt */
  uint32_t has_template;        /* 1: orrery_render_chat() works without a template of the caller's */
} orrery_vocab_info;
ORRERY_API void orrery_vocab_info_init(orrery_vocab_info *info, size_t struct_size);
ORRERY_API orrery_status orrery_vocab_get_info(const orrery_vocab *vocab, orrery_vocab_info *info, orrery_error *error);

#define ORRERY_TOKEN_CONTROL 1u            /* a control token: never text */
#define ORRERY_TOKEN_END_OF_GENERATION 2u  /* ends an answer */
/* ORRERY_TOKEN_ flags of one token; 0 for ordinary tokens and ids outside the vocabulary. */
ORRERY_API uint32_t orrery_token_flags(const orrery_vocab *vocab, int32_t token);

typedef struct orrery_template_options {
  uint32_t struct_size;
  uint32_t add_generation_prompt;  /* default 1: end where the assistant's answer begins */
  const char *template_source;     /* a Jinja template instead of the file's; NULL: the file's */
  const char *template_name;       /* one of the file's named templates (tokenizer.chat_template.NAME); NULL: the default */
  const char *tools_json;          /* JSON array of tool definitions; NULL: none */
  const char *variables_json;      /* JSON object of further variables, e.g. {"enable_thinking": false}; NULL: none */
} orrery_template_options;
ORRERY_API void orrery_template_options_init(orrery_template_options *options, size_t struct_size);
/* Renders a JSON array of messages ({"role": ..., "content": ...}, and other keys that the template reads) to text.
   See "Sizes out"; the text is not NUL-terminated. */
ORRERY_API orrery_status orrery_render_chat(const orrery_vocab *vocab, const char *messages_json, const orrery_template_options *options,
                                            char *text, size_t capacity, size_t *text_bytes, orrery_error *error);
/* Describes as JSON how the template has reasoning and calls of tools written: "calls" is null where "why_none" says why. See "Sizes out". */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_chat_format(const orrery_vocab *vocab, const orrery_template_options *options, char *json,
                                                            size_t capacity, size_t *json_bytes, orrery_error *error);

/* ---- Plan: the memory of a model and a session, from the file's header alone ------------------------------------ */
#define ORRERY_KV_F16 0
#define ORRERY_KV_F32 1
#define ORRERY_KV_Q8_0 2
#define ORRERY_KV_Q4_0 3
#define ORRERY_KV_K8V4 4 /* K in Q8_0, V in Q4_0 */
ORRERY_API const char *orrery_kv_type_name(uint32_t type);
/* The bytes of one token's K and V of one head. key_dim, value_dim: their numbers of values; 0: none. The function returns 0 for a type that it
   does not know, and for quantized types where a dimension is no multiple of 32. */
ORRERY_UNSTABLE ORRERY_API uint64_t orrery_kv_type_bytes(uint32_t type, uint32_t key_dim, uint32_t value_dim);

/* RoPE scaling, where the file's own is to be overridden. */
#define ORRERY_ROPE_FROM_FILE 0
#define ORRERY_ROPE_NONE 1
#define ORRERY_ROPE_LINEAR 2
#define ORRERY_ROPE_YARN 3
#define ORRERY_ROPE_LLAMA3 4     /* Llama 3.1's published smoothing by wavelength */
#define ORRERY_ROPE_LONGROPE 5   /* the factors must be in the file; rope_original_context moves their threshold */
ORRERY_API const char *orrery_rope_scaling_name(uint32_t scaling);

typedef struct orrery_model_options orrery_model_options;
typedef struct orrery_session_options orrery_session_options;

typedef struct orrery_plan_result {
  uint32_t struct_size;
  uint32_t n_context;                /* tokens that the session would hold */
  uint64_t weights_mapped_bytes;     /* weights used where the file is mapped, or read to host memory: not in the arena */
  uint64_t weights_bytes;            /* weights in the arena, and adapters */
  uint64_t full_kv_bytes;            /* KV of heads that are full on the device; of whole contexts in units of 256 tokens */
  uint64_t compressed_kv_bytes;      /* KV of compressed heads and of windows; recurrent states */
  uint64_t digests_bytes;            /* page digests, low-rank keys, compensation tokens: ORRERY_REGION_SUMMARIES */
  uint64_t staging_bytes;            /* transfer ring, queries, attention weights, mean keys: ORRERY_REGION_STAGING */
  uint64_t workspace_bytes;          /* activations, scratch, logits; shared by the runtime's sessions */
  uint64_t device_bytes;             /* all of these that lie in the arena, for one session */
  uint64_t reservoir_bytes;          /* KV in host memory, for one session */
  uint64_t host_bytes;               /* tables and buffers of one session in host memory, beside the reservoir */
  uint64_t budget_bytes;             /* size of the arena that was asked about */
  uint32_t largest_context;          /* the most tokens that fit both budgets; 0: not even the smallest */
  uint32_t fits;                     /* 1: device_bytes and reservoir_bytes are within their budgets */
  uint32_t device_kv_type;           /* ORRERY_KV_: of the KV in the arena; see orrery_session_options.device_kv_type */
  uint32_t trained_context;          /* tokens that the model was trained for. Without RoPE scaling answers get worse behind them */
  uint64_t reservoir_budget_bytes;   /* size of the reservoir */
  const char *policy;                /* of the session: "auto" where nobody named one and full KV does not fit; static */
  float kv_share;                    /* what the policy may keep: a share of the bytes of full KV in kv_type; 1: all */
  uint32_t reserved;
} orrery_plan_result;
ORRERY_API void orrery_plan_result_init(orrery_plan_result *plan, size_t struct_size);
/* Reads the header of the model only. Any options may be NULL. Errors are those of orrery_source, and of the options. */
ORRERY_API orrery_status orrery_plan(const orrery_source *source, const orrery_runtime_options *runtime, const orrery_model_options *model,
                                     const orrery_session_options *session, orrery_plan_result *plan, orrery_error *error);

/* ---- Model: immutable, shared freely ------------------------------------------------------------------------- */
typedef struct orrery_model orrery_model;

#define ORRERY_LOAD_MAP 0   /* map the file. If somebody truncates its weights meanwhile, the system kills the process: the one documented exception
                               to "no input kills the process". Overwriting them changes answers, and nothing else: the header is copied once */
#define ORRERY_LOAD_READ 1  /* read its tensors into our own memory: no exception, and the source may go. ORRERY_OUT_OF_HOST_MEMORY, with the numbers,
                               where they need more than is free */
ORRERY_API const char *orrery_load_mode_name(uint32_t mode);

/* Progress of a long call; return 0 to go on, anything else to cancel. */
typedef int32_t (*orrery_progress_fn)(void *user, uint64_t done, uint64_t total);

struct orrery_model_options {
  uint32_t struct_size;
  uint32_t load;                  /* ORRERY_LOAD_ */
  orrery_progress_fn progress;    /* bytes, from the first megabyte of the header on; NULL: none */
  void *progress_user;
  uint32_t full_fingerprint;      /* 1: hash every weight into the fingerprint, not samples of them */
  uint32_t rope_scaling;          /* ORRERY_ROPE_ */
  float rope_scale;               /* factor for LINEAR, YARN and LLAMA3 */
  float rope_base;                /* > 0: instead of the file's frequency base */
  uint32_t rope_original_context; /* the context it was trained with, for YARN, LLAMA3, LONGROPE; 0: the file's */
  uint32_t host_computes;         /* 1: the processor computes, beside the device and from the reservoir, what is not there: experts of a mixture,
                                     or columns of the feed-forward blocks of a dense model. These cross the link for prompts alone, experts
                                     for long ones. The division is fixed. 2: experts and layers cross the link. 0 (default): 1 on a GPU,
                                     of a dense model if layers_on_device is -1; else 2 */
  int64_t experts_on_device;      /* number of a mixture's experts, over all layers, that the arena has room for; the reservoir has the others. A
                                     device with a link needs room for twice a layer's. -1 (default): all that fit. orrery_model_experts() */
  uint64_t sessions_bytes;        /* of the arena, which weights leave to sessions; 0: experts and columns leave what a session of 8,192 tokens with
                                     KV in F16 needs; layers leave only if no session fits, and then what one of 2,048 tokens needs */
  int64_t layers_on_device;       /* number of layers whose matrices (but experts) lie in the arena; the reservoir has the others', which cross
                                     the link in each step. -1 (default): all that fit. orrery_model_streaming() */
  int64_t columns_on_device;      /* with host_computes, of a dense model: of the columns of each feed-forward block, per cent that lie in the
                                     arena. -1 (default): all that fit. orrery_model_streaming() */
};
ORRERY_API void orrery_model_options_init(orrery_model_options *options, size_t struct_size);

/* Opens a model. Errors are those of orrery_source and of the options. ORRERY_BAD_MODEL, ORRERY_UNSUPPORTED_ARCHITECTURE,
   ORRERY_UNSUPPORTED_QUANTIZATION: the file; ORRERY_CANCELLED: by `progress`; memory that is not there, with the numbers. */
ORRERY_API orrery_status orrery_model_open(orrery_runtime *runtime, const orrery_source *source, const orrery_model_options *options,
                                           orrery_model **model, orrery_error *error);
ORRERY_API void orrery_model_free(orrery_model *model);

#define ORRERY_PURPOSE_GENERATE 1u  /* it generates text: sessions open on it */
#define ORRERY_PURPOSE_EMBED 2u     /* it is trained for embeddings: the file says how to pool, or it is an encoder */
#define ORRERY_PURPOSE_RANK 4u      /* it scores texts by a query: orrery_rank() */

typedef struct orrery_model_info {
  uint32_t struct_size;
  uint32_t n_layers, n_heads, n_kv_heads, head_dim, n_embd, n_vocab;   /* heads: of the layers that KV policies divide; others may differ
                                                                        (orrery_model_layer_info()) */
  uint32_t trained_context;       /* tokens, by the file */
  uint64_t n_parameters;
  uint64_t file_bytes;
  uint64_t weights_bytes;         /* weights as they are held in memory */
  const char *architecture;       /* "llama"; as long as the model */
  const char *name;               /* general.name, or ""; bytes that are not UTF-8 are U+FFFD; as long as the model */
  const char *quantization;       /* the type that most weights have, "Q4_K" */
  uint8_t fingerprint[16];
  uint64_t host_bytes;            /* allocated for the model and its vocabulary, now; see "Memory" */
  uint64_t host_peak_bytes;       /* the most that host_bytes has been */
  uint32_t purpose;               /* ORRERY_PURPOSE_: what the model is for */
  uint32_t pooling;               /* ORRERY_POOLING_: what ORRERY_POOLING_MODEL stands for */
} orrery_model_info;
ORRERY_API void orrery_model_info_init(orrery_model_info *info, size_t struct_size);
ORRERY_API orrery_status orrery_model_get_info(const orrery_model *model, orrery_model_info *info, orrery_error *error);
/* The model's vocabulary: a new reference, freed with orrery_vocab_free(). NULL for NULL, or when the system gives no memory. */
ORRERY_API orrery_vocab *orrery_model_vocab(const orrery_model *model);

/* ---- Embeddings and ranking: texts to vectors, and to scores ------------------------------------------------- */
/* How the rows of a text's tokens, which are the hidden states after the output norm, become its vector. */
#define ORRERY_POOLING_MODEL 0   /* as the model's file says; if it says nothing, MEAN in an encoder, else LAST */
#define ORRERY_POOLING_MEAN 1    /* the mean of all rows */
#define ORRERY_POOLING_FIRST 2   /* the first row, that of a CLS token */
#define ORRERY_POOLING_LAST 3    /* the last row */
#define ORRERY_POOLING_NONE 4    /* no pooling: a vector for each token */
ORRERY_UNSTABLE ORRERY_API const char *orrery_pooling_name(uint32_t pooling);

typedef struct orrery_embed_options {
  uint32_t struct_size;
  uint32_t pooling;               /* ORRERY_POOLING_; default MODEL */
  uint32_t normalize;             /* 1 (default): each vector has length 1 (a vector of zeros stays); 0: as the model gives it */
  uint32_t n_dimensions;          /* of a vector: its first values, cut before it is normalised, for models trained so (Matryoshka); 0: n_embd */
  uint32_t max_tokens;            /* of a text, with the tokens that the tokenizer puts around it; at most trained_context. 0: trained_context */
  uint32_t truncate;              /* 1: a text of more tokens is cut; 0 (default): it is ORRERY_CONTEXT_FULL, and the message has its number */
  orrery_progress_fn progress;    /* tokens of all texts, after each part of a text: a tenth of a second; NULL: none */
  void *progress_user;
} orrery_embed_options;
ORRERY_UNSTABLE ORRERY_API void orrery_embed_options_init(orrery_embed_options *options, size_t struct_size);

/* Computes vectors of texts. Each text is computed by itself and its KV given back before the next one, so a text has the same vector in any
   list. A text that spells a control token stays text.
     texts     (n_texts) UTF-8, NUL-terminated. ORRERY_INVALID_ARGUMENT: a text without tokens; the message has its number, from 0
     vectors   (n_texts, n_dimensions) in the order of the texts; with ORRERY_POOLING_NONE (tokens of all texts, n_dimensions)
     n_floats  size of `vectors`. See "Sizes out"
     n_tokens  (n_texts) receives the number of tokens of each text; NULL: not wanted
   Memory: as of a session with the context of the longest text, for the time of the call; it takes no place of max_sessions. Any number of
   threads may call it. ORRERY_OUT_OF_DEVICE_MEMORY: the arena lacks room. ORRERY_CANCELLED: `progress` has cancelled. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_embed(orrery_model *model, const char *const *texts, size_t n_texts,
                                                      const orrery_embed_options *options, float *vectors, size_t capacity, size_t *n_floats,
                                                      uint32_t *n_tokens, orrery_error *error);
/* Scores texts by a query, with a model that has a reranker's head. Each pair of query and text is computed as orrery_embed() computes a
   text: with the file's template for such pairs ("rerank"), or else the query, the tokenizer's separator and the text.
     query     UTF-8, NUL-terminated
     texts     (n_texts), and n_tokens: as orrery_embed() has them; tokens are of the query, too, and `truncate` cuts the text
     options   of orrery_embed(); pooling and n_dimensions must be 0. normalize: 1 (default): a score is the probability, from 0 to 1, that the
               text answers the query; 0: its log-odds, which do not saturate
     scores    (n_scores) floats, one of each text; more is better. n_scores: n_texts, else ORRERY_INVALID_ARGUMENT
   ORRERY_UNSUPPORTED: the model has no such head. Other errors as of orrery_embed(). */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_rank(orrery_model *model, const char *query, const char *const *texts, size_t n_texts,
                                                     const orrery_embed_options *options, float *scores, size_t n_scores, uint32_t *n_tokens,
                                                     orrery_error *error);

/* ---- Adapters: LoRA, low-rank parts of a model's matrices ------------------------------------------------------- */
typedef struct orrery_adapter orrery_adapter;
/* Opens an adapter of `model`: a GGUF file with general.type "adapter", adapter.type "lora", and pairs NAME.lora_a (rank, n_in), NAME.lora_b (n_out,
   rank) in F32, F16, BF16 or Q8_0. It is copied to the arena as float32: then the source may go, and sessions take no memory for it. Errors are those
   of orrery_source. ORRERY_BAD_MODEL: it is for another architecture, or a tensor fits none of the model's. ORRERY_UNSUPPORTED: pairs of the token
   embedding, of norms, of experts' matrices or of heads' (MLA's attn_k_b, attn_v_b); CUDA. The message names the tensor. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_adapter_open(orrery_model *model, const orrery_source *source, orrery_adapter **adapter,
                                                             orrery_error *error);
ORRERY_UNSTABLE ORRERY_API void orrery_adapter_free(orrery_adapter *adapter);
/* One adapter of a session's list: products W x become W x + scale * alpha / rank * B (A x), all of the list added up in its order. */
typedef struct orrery_adapter_use {
  orrery_adapter *adapter;        /* of the session's model; the session keeps it. NULL: `source` */
  const orrery_source *source;    /* orrery_plan() alone: an adapter that is not open yet */
  float scale;                    /* finite; 0: as if the adapter were not in the list */
  uint32_t reserved;
} orrery_adapter_use;

/* ---- Session: one sequence of tokens, its KV cache, and the conversation they come from ------------------------ */
typedef struct orrery_session orrery_session;
typedef struct orrery_folder orrery_folder;
/* What happens when the context is full. */
#define ORRERY_OVERFLOW_STOP 0         /* the answer ends; a prompt longer than the context is ORRERY_CONTEXT_FULL */
#define ORRERY_OVERFLOW_DROP_OLDEST 1  /* the oldest turns leave the context, and stay in the conversation */
/* DROP_OLDEST. A turn begins at a user message and ends before the next one. System and developer messages at the beginning stay, and
   so does the last turn. If a prompt leaves too little room for the answer (max_tokens, at most a quarter of the context), it drops the
   fewest turns that leave a quarter free: then the next turns can reuse the KV. Dropped turns stay dropped until the conversation is
   rewound to them. ORRERY_CONTEXT_FULL: the turns that must stay are longer than the context. */
ORRERY_API const char *orrery_overflow_name(uint32_t overflow);

/* How a session guesses tokens ahead. One step computes the next token and its guesses; the sampler's choices decide which of them count.
   Tokens, logits, log-probabilities, KV and hooks are those of policy "full" and OFF, bit for bit, at any temperature. */
#define ORRERY_SPECULATE_OFF 0
#define ORRERY_SPECULATE_NGRAM 1   /* guesses from earlier text, where answers quote it. ORRERY_UNSUPPORTED: another policy than "full" */
#define ORRERY_SPECULATE_POLICY 2  /* under a KV policy: its resident KV drafts tokens, the full KV in host memory verifies them.
                                      ORRERY_UNSUPPORTED: a policy that replaces resident tokens; CUDA */
#define ORRERY_SPECULATE_DRAFT 3   /* the smaller model `draft_model` drafts its likeliest tokens. ORRERY_UNSUPPORTED: as NGRAM */
#define ORRERY_SPECULATE_MTP 4     /* the file's block that guesses tokens drafts; ORRERY_UNSUPPORTED: as NGRAM, or the file has none (MTP) */
ORRERY_UNSTABLE ORRERY_API const char *orrery_speculate_name(uint32_t speculate);

/* A KV policy chooses the KV that stays on the device when a prompt is complete. Under every policy but "full", host memory also keeps all KV.
   Prompts attend to all tokens, exactly. Generated tokens attend to the resident KV, and to the KV that the policy fetches for them. The policies:
     "full"          full attention: all KV on the device
     "auto"          the default under a KV budget. On the CPU it finds single tokens at every step, in heads of 64 or more
     "streaming", "h2o", "snapkv", "pyramidkv", "adakv", "adapyramid", "cake"   keep single tokens of each head
     "duoattention", "razorattention", "heterocache", "synckv"                  keep some heads whole
     "freekv", "quest", "arkvale", "raas", "shadowkv", "shadowkv+"              find pages or chunks of tokens by digests
     "omnikv", "loki", "infinigen", "keycodes"                                  find single tokens at every step
   orrery_policies() describes each of them: paper, options, costs, and differences from the paper and from published code. */
/* One option of a policy, by name: ("sinks", "4"). orrery_policies() lists them. */
typedef struct orrery_option {
  const char *name;
  const char *value;
} orrery_option;

struct orrery_session_options {
  uint32_t struct_size;
  uint32_t n_context;             /* tokens. 0: as trained, or fewer if the arena has no room for more; then the log warns */
  uint32_t kv_type;               /* ORRERY_KV_: of all KV that is kept; quantized types need head_dim % 32 == 0 */
  uint32_t overflow;              /* ORRERY_OVERFLOW_ */
  uint32_t chunk_tokens;          /* prompt tokens per prefill chunk; 0: 256, on a GPU up to 2,048 if no context is lost by it. Fewer on
                                     the CPU where a layer takes long. Changes no results but last bits on a GPU where cuBLAS multiplies */
  uint32_t n_policy_options;
  const char *policy;             /* a name from above. NULL (default): "auto" if a KV budget is given, else "full". If the KV of a given
                                     n_context does not fit the arena and a tenth of it does, NULL is "auto" with the largest share that
                                     fits (on the CPU at most a quarter): an approximation. Plan and statistics name it; the log warns */
  const orrery_option *policy_options;  /* (n_policy_options), copied */
  uint64_t kv_budget_bytes;       /* device memory for KV under a policy other than "full"; 0: kv_budget_share says it */
  float kv_budget_share;          /* a share of the bytes of full KV in kv_type: more than 0, at most 1 (default). The plan takes it of n_context
                                     tokens; a complete prompt, of the tokens that the session then holds, rounded up to a whole token in each head.
                                     A coarser device_kv_type takes no more bytes and holds more tokens (Q8_0: 1.88 times as many as F16), at most
                                     all. Under any share, layers with a sliding window keep their window, and other heads keep 64 tokens */
  uint32_t device_kv_type;        /* of the KV that a policy keeps on the device. 1 + ORRERY_KV_: that type, not finer than
                                     kv_type (from fine to coarse: F32, F16, Q8_0, K8V4, Q4_0). 0: the policy's choice. "auto" has
                                     Q8_0, or by the budget K8V4 or Q4_0 if head_dim % 64 == 0 (orrery_policies()); where kv_type is
                                     finer and head_dim % 32 == 0. Others, and "full" (also for NULL), have kv_type */
  const char *head_profile;       /* for policies that tell heads apart: JSON of orrery_calibration_profile() or
                                     orrery_head_profile_import_gates(), or the published HeteroCache format. Copied. NULL: "heterocache"
                                     and "synckv" calibrate themselves on the prompt; "duoattention" and "razorattention" are
                                     ORRERY_INVALID_ARGUMENT under a budget that makes heads differ. ORRERY_INVALID_ARGUMENT under any
                                     policy: the profile is of another model or shape (orrery_plan() checks the shape alone) */
  uint32_t speculate;             /* ORRERY_SPECULATE_; default OFF */
  uint32_t speculate_tokens;      /* guessed tokens of a step: at most 7; 0: 7. Less where fewer pay */
  uint32_t reuse_prompts;         /* 1 (default): finished generations keep a copy of their KV, by pages of 64 tokens, in a quarter of the
                                     reservoir (at most 512 MiB, unless reservoir_bytes is given). The least recently used page leaves
                                     first, or when a session needs the room. Prompts take KV from there, with the bits of a fork: of
                                     all sessions' prompts, and of this session's and its forks' tokens. Not under "h2o". 0: off */
  uint32_t n_adapters;            /* at most 64 */
  orrery_model *draft_model;      /* DRAFT: an open model of the same runtime, for any number of sessions; else NULL. The session and its forks
                                     keep it, and its handle may be freed. Each session has F16 KV of it for n_context tokens.
                                     ORRERY_INVALID_ARGUMENT: it is another runtime's, or the session's own model, or its vocabulary differs (the
                                     message names the first difference). ORRERY_UNSUPPORTED: an encoder, or a model with recurrent layers */
  const orrery_source *draft_source; /* orrery_plan() alone, which takes no draft_model: a draft model that is not open; the plan has its weights, as
                                     ORRERY_LOAD_MAP has them. Errors as of orrery_source, and of draft_model */
  const orrery_adapter_use *adapters; /* (n_adapters), copied. Sessions with different adapters share steps. The plan has each adapter's bytes once.
                                     Embeddings, calibrations and draft models have none */
  uint32_t load_behind;           /* 1: orrery_session_load() on a session without tokens reads the KV pages behind its return; see there */
  uint32_t reserved;
  orrery_folder *folder;          /* where generations take the KV of prompts' beginnings that neither the session nor kept KV has: orrery_folder_open() of orrery_lab.h.
                                     The session and its forks keep it. Not under "h2o". NULL (default): none. orrery_plan() ignores it */
};
ORRERY_API void orrery_session_options_init(orrery_session_options *options, size_t struct_size);

/* Opens a session, and takes the memory that orrery_plan() foretells. ORRERY_OUT_OF_DEVICE_MEMORY: the arena lacks room (bytes_requested,
   bytes_available), or has max_sessions sessions; the message names the largest context that fits. ORRERY_INVALID_ARGUMENT: an option is out of
   range or unknown, or the KV budget is too small for the policy; the message names the option, or the smallest budget. ORRERY_UNSUPPORTED: the
   model generates no text (orrery_model_info.purpose). */
ORRERY_API orrery_status orrery_session_open(orrery_model *model, const orrery_session_options *options,
                                             orrery_session **session, orrery_error *error);
ORRERY_API void orrery_session_free(orrery_session *session);

/* Cancels the work that the session does now, and returns at once. The session's generations may be freed meanwhile, the session not.
   A generation under way reports DONE with ORRERY_FINISH_CANCELLED, as after orrery_cancel(). A running call returns ORRERY_CANCELLED:
   orrery_session_evaluate() has kept whole chunks of its tokens; _save, _load, _save_buffer, _load_buffer, _rewind and _fork have changed
   nothing. If nothing runs, nothing happens. Allowed from any thread and from callbacks other than log functions, but not from a signal handler. */
ORRERY_API void orrery_session_cancel(orrery_session *session);

/* The conversation. A generation renders it with the chat template, reuses the KV of the tokens that the session already holds
   (the common prefix), computes the others, answers, and adds the answer as a message. */

/* Adds a message. `role`: "system", "user", "assistant", or another that the template knows; not empty. Control tokens that `content`
   spells out are text to the model. */
ORRERY_API orrery_status orrery_session_add_message(orrery_session *session, const char *role, const char *content, orrery_error *error);
/* Adds a message as a JSON object with "role", for templates that read more than role and content (tool calls, ...).
   ORRERY_INVALID_ARGUMENT: not JSON (line, column), not an object, or without a role. */
ORRERY_API orrery_status orrery_session_add_message_json(orrery_session *session, const char *message_json, orrery_error *error);
/* The number of messages; 0 for NULL, and while another call uses the session. */
ORRERY_API size_t orrery_session_n_messages(const orrery_session *session);
/* Writes message i, from 0 to orrery_session_n_messages() - 1, as a JSON object. See "Sizes out"; not NUL-terminated. */
ORRERY_API orrery_status orrery_session_message(const orrery_session *session, size_t i, char *json, size_t capacity,
                                                size_t *json_bytes, orrery_error *error);
/* Sets template, tools and variables of the next turns: options, copied; NULL: the defaults of the model.
   ORRERY_UNSUPPORTED_TEMPLATE: the template cannot be compiled: line, column. */
ORRERY_API orrery_status orrery_session_set_template(orrery_session *session, const orrery_template_options *options, orrery_error *error);
/* Cuts the conversation to its first n_messages. The next turn reuses their KV. ORRERY_INVALID_ARGUMENT: it has fewer. */
ORRERY_API orrery_status orrery_session_rewind_messages(orrery_session *session, size_t n_messages, orrery_error *error);

/* The number of tokens that the session holds; 0 for NULL. */
ORRERY_API size_t orrery_session_n_tokens(const orrery_session *session);
/* Writes these tokens. See "Sizes out". */
ORRERY_API orrery_status orrery_session_tokens(const orrery_session *session, int32_t *tokens, size_t capacity,
                                               size_t *n_tokens, orrery_error *error);
/* Cuts the tokens to the first n_tokens. The messages stay, and the next turn computes the missing tokens again, or takes kept KV
   (reuse_prompts). ORRERY_INVALID_ARGUMENT: the session holds fewer. */
ORRERY_API orrery_status orrery_session_rewind(orrery_session *session, size_t n_tokens, orrery_error *error);

/* Replaces the adapters: (n_adapters) as in orrery_session_options. KV belongs to the list that made it, by contents, order and scales: if it changes,
   the session drops its tokens. The conversation stays, and the next turn computes it again or takes KV kept under the same list (reuse_prompts).
   Forks have the session's list; a saved session with tokens loads under an equal list, else ORRERY_BAD_SESSION. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_session_set_adapters(orrery_session *session, const orrery_adapter_use *adapters,
                                                                     size_t n_adapters, orrery_error *error);
/* Makes a second session with the same tokens, KV and conversation. The two share pages until one of them changes a page. If the arena has no room
   for it, the fork starts parked: its KV lies in host memory, and its first use fails with ORRERY_OUT_OF_DEVICE_MEMORY until another session of the
   model is freed. Under a policy other than "full", a fork continues exactly as the session does, a parked one too. */
ORRERY_API orrery_status orrery_session_fork(orrery_session *session, orrery_session **fork, orrery_error *error);

/* Saving and loading: tokens, KV and conversation, with a checksum, bound to the model's fingerprint; the last logits; and under a policy its resident
   KV and its state. A session of the same options and backend goes on as the saved one, to the bit. One of other options selects its resident KV
   again (selects_again of orrery_stats). Loading replaces the session's content; after an error the content is as before. The session that loads
   must have the same KV type, and room for the saved tokens; else ORRERY_BAD_SESSION, or ORRERY_CONTEXT_FULL. Tokens and KV are exact on every
   instruction set; what is computed behind them differs between two in its last bits. The checksum finds damage. It is no signature: whoever can
   write the file can forge it. Load your own files, or sign them. A version that does not know
   logits and resident KV in a file refuses it, and its own files are read. */

/* Saves to a file, whole or not at all. Symbolic links are followed, also to a file that does not exist.
     path   of a regular file, or of no file yet. ORRERY_IO: anything else (a directory, device, FIFO, socket), or not writable
   The new file gets the mode of the old one (else 0600), and its owner if the system permits; no extended attributes or access control
   lists. Other hard links keep the old content. It is written as .orrery-HASH-N beside the old one, flushed and renamed: after any error,
   crash or power cut, the old file or the new one is there, whole. A process that is killed meanwhile may leave .orrery-HASH-N behind,
   which the next save of the same file removes. Up to 32 processes may save the same file at once: the last one wins. */
ORRERY_API orrery_status orrery_session_save(orrery_session *session, const char *path, orrery_error *error);
/* Loads from a regular file: no call waits for a FIFO or acts on a device. A session that holds tokens reads a file of more than 64 MiB
   twice. If the second reading fails or finds other bytes, it has lost its tokens and keeps its conversation; the message says so.
   With load_behind a session without tokens returns with its logits, and a thread reads the KV pages. Calls that need them wait, and can be
   cancelled. If they turn out to be damaged, such a call says so, with `path`: the session has lost its tokens and keeps its conversation. */
ORRERY_API orrery_status orrery_session_load(orrery_session *session, const char *path, orrery_error *error);
/* Saves to memory. See "Sizes out". */
ORRERY_API orrery_status orrery_session_save_buffer(orrery_session *session, void *bytes, size_t capacity, size_t *n_bytes, orrery_error *error);
/* Loads from memory: bytes (n_bytes), the caller's again after the call. */
ORRERY_API orrery_status orrery_session_load_buffer(orrery_session *session, const void *bytes, size_t n_bytes, orrery_error *error);

/* Appends tokens by prefill, without an answer.
     tokens   (n_tokens) ids of the vocabulary; else ORRERY_INVALID_ARGUMENT. ORRERY_CONTEXT_FULL: more than the context holds
     logits   (n_tokens, n_vocab) floats, or NULL */
ORRERY_API orrery_status orrery_session_evaluate(orrery_session *session, const int32_t *tokens, size_t n_tokens,
                                                 float *logits, orrery_error *error);
/* Write the logits (n_vocab), and the hidden state after the output norm (n_embd), of the last computed token.
   ORRERY_INVALID_ARGUMENT: n is another number, or the session has computed no token since it changed. */
ORRERY_API orrery_status orrery_session_logits(const orrery_session *session, float *logits, size_t n, orrery_error *error);
ORRERY_API orrery_status orrery_session_embedding(const orrery_session *session, float *embedding, size_t n, orrery_error *error);

typedef struct orrery_stats {
  uint32_t struct_size;
  uint32_t n_context, n_tokens;
  uint32_t parked;                   /* 1: holds no device memory */
  uint64_t prompt_tokens;            /* computed by prefill, over the session's life */
  uint64_t reused_tokens;            /* prompt tokens whose KV was there already: in the session, kept (restored_tokens) or saved (folder_tokens) */
  uint64_t generated_tokens;
  uint64_t prefill_us, decode_us;    /* time in the model */
  uint64_t device_kv_bytes;          /* KV and its summaries: regions KV and SUMMARIES of the plan; 0 while parked */
  uint64_t device_kv_used_bytes;     /* the part that holds tokens */
  uint64_t shared_kv_bytes;          /* of pages shared with forks */
  uint64_t workspace_bytes;
  uint64_t host_to_device_bytes, device_to_host_bytes;   /* KV moved between arena and host, or read by attention in host memory */
  uint64_t reservoir_bytes;          /* KV in host memory, reserved; 0 while parked */
  /* Of policies other than "full": */
  uint64_t n_settled;                /* how often the resident KV was selected again */
  uint64_t settle_us;                /* time of these selections; part of decode_us */
  uint64_t refill_bytes;             /* KV fetched, or read in place, while generating; part of host_to_device_bytes */
  uint64_t transfer_us;              /* time of these fetches on the link */
  uint64_t stall_us;                 /* time that steps waited for them: 1 - stall_us / transfer_us was hidden */
  uint64_t n_checks, n_triggers;     /* checks whether a head's resident KV has drifted, and those that refreshed it */
  uint64_t wanted_tokens;            /* tokens that refreshed heads should hold */
  uint64_t missed_tokens;            /* tokens of them that the heads did not hold; the others were hits */
  uint32_t reservoir_mode;           /* ORRERY_RESERVOIR_: of reservoir_bytes */
  uint32_t device_kv_type;           /* ORRERY_KV_: of device_kv_bytes */
  uint64_t host_bytes;               /* allocated for the session, its conversation and its generations, now; see "Memory" */
  uint64_t host_peak_bytes;          /* the most that host_bytes has been */
  uint64_t guessed_tokens;           /* computed ahead; see ORRERY_SPECULATE_ */
  uint64_t accepted_tokens;          /* guessed tokens that the sampler chose: steps that the session did not take */
  uint64_t restored_tokens;          /* of the reused tokens: from kept KV; see reuse_prompts */
  const char *policy;                /* static */
  float kv_share;                    /* as in the plan */
  uint32_t selects_again;            /* 1: the session was cut, or saved with other options, so its next generated token selects the resident KV again.
                                        Some policies then give other tokens, and log-probabilities that differ by up to .2 */
  uint64_t folder_tokens;            /* of the reused tokens: from the session's folder */
} orrery_stats;
ORRERY_API void orrery_stats_init(orrery_stats *stats, size_t struct_size);
/* Fills `stats`. Allowed while a generation is unfinished. */
ORRERY_API orrery_status orrery_session_stats(const orrery_session *session, orrery_stats *stats, orrery_error *error);
/* ---- Generation: one answer under way --------------------------------------------------------------------------- */
typedef struct orrery_generation orrery_generation;
typedef struct orrery_logit_bias {
  int32_t token;
  float bias;                        /* added to the token's logit; -INFINITY bans it */
} orrery_logit_bias;

/* Called before each token is chosen, after bias, penalties and grammar. Returns 0 to continue, another value to cancel.
     logits   (n_vocab) the function may change them; what a grammar bans stays banned
     tokens   (n_tokens) of the session so far */
typedef int32_t (*orrery_logits_fn)(void *user, float *logits, size_t n_vocab, const int32_t *tokens, size_t n_tokens);

/* Grammars: what an answer may be. Each token is chosen among those that the grammar allows, and the answer ends where nothing else may
   follow. Text and log-probabilities are the model's otherwise; guesses (ORRERY_SPECULATE_) change nothing, and include text that the
   grammar forces. The library does not put a schema into the prompt: say there what you want. A grammar is compiled once for a vocabulary
   and kept while it is in use or among the last 32. */
#define ORRERY_GRAMMAR_GBNF 0         /* rules, as llama.cpp's files have them */
#define ORRERY_GRAMMAR_JSON_SCHEMA 1  /* drafts 4, 7 and 2020-12: every keyword constrains, is an annotation, or is refused by name */
#define ORRERY_GRAMMAR_REGEX 2        /* ECMA-262: the whole answer matches */
ORRERY_UNSTABLE ORRERY_API const char *orrery_grammar_kind_name(uint32_t kind);
#define ORRERY_WHITESPACE_FREE 0      /* of JSON: nothing, one space, or one line break and at most 32 blanks */
#define ORRERY_WHITESPACE_COMPACT 1   /* nothing */
#define ORRERY_WHITESPACE_SPACED 2    /* ", " and ": " */
ORRERY_UNSTABLE ORRERY_API const char *orrery_whitespace_name(uint32_t whitespace);

/* Calls of the session's tools (orrery_template_options.tools_json: {"type": "function", "function": {"name", "parameters"}}; parameters: a JSON
   schema). How a model writes calls and reasoning is derived from its chat template, and proved by printing it back; a few formats come from a
   table. A call fits its tool's schema. It is written as the template prints it, so the next turn reuses its KV. The conversation keeps it in the
   answer's message: "tool_calls", and "reasoning_content". Add a message with "role": "tool", "tool_call_id" and "content" for each call, and
   generate again. Unfinished calls are no calls: their text stays in the message's content. ORRERY_UNSUPPORTED: no format is known for the
   template, with the reason, or it cannot write such arguments. */
#define ORRERY_TOOLS_IGNORED 0   /* the answer is text, whatever it says */
#define ORRERY_TOOLS_AUTO 1      /* text, calls or both, as the model likes and the template prints them */
#define ORRERY_TOOLS_NONE 2      /* no calls */
#define ORRERY_TOOLS_REQUIRED 3  /* at least one call */
ORRERY_UNSTABLE ORRERY_API const char *orrery_tools_name(uint32_t tools);

typedef struct orrery_generate_options {
  uint32_t struct_size;
  uint32_t max_tokens;               /* 0: until the model ends the answer or the context is full */
  float temperature;                 /* default 0: greedy. The order: bias, penalties, grammar, hook, temperature, top_k, top_p, min_p */
  float top_p;                       /* default 1: off */
  float min_p;                       /* default 0: off */
  uint32_t top_k;                    /* default 0: off */
  uint64_t seed;                     /* on one instruction set, the same seed, prompt and options give the same answer; default 0 */
  float repetition_penalty;          /* default 1: off; divides positive logits, multiplies negative ones */
  float frequency_penalty;           /* default 0; times how often the token occurred */
  float presence_penalty;            /* default 0; once if it occurred */
  uint32_t penalty_tokens;           /* number of last tokens that the penalties count; default 64 */
  const char *const *stop;           /* (n_stop) strings that end the answer and are not part of it; UTF-8, 1 MiB in all */
  uint64_t n_stop;
  const orrery_logit_bias *logit_bias;   /* (n_logit_bias) */
  uint64_t n_logit_bias;
  orrery_logits_fn logits_hook;      /* NULL: none */
  void *logits_user;
  uint32_t n_logprobs;               /* alternatives reported with each token; at most 20; default 0 */
  uint32_t ignore_end;               /* 1: end-of-generation tokens do not end the answer; a grammar that allows nothing else does */
  const char *grammar;               /* a grammar's source, at most 4 MiB; NULL (default): none. Near max_tokens or the context's end only
                                        what can still be closed is allowed: the answer is whole unless the limit is below its least text */
  const char *grammar_root;          /* GBNF: the rule that an answer is; NULL: "root" */
  uint32_t grammar_kind;             /* ORRERY_GRAMMAR_ */
  uint32_t grammar_whitespace;       /* ORRERY_WHITESPACE_: JSON schema */
  uint32_t grammar_tokens;           /* orrery_generate_tokens(): number of the last tokens that begin the answer; default 0 */
  uint32_t tools;                    /* ORRERY_TOOLS_ */
  const char *tool_name;             /* AUTO, REQUIRED: the one tool that may be called; NULL (default): any */
  uint32_t one_call;                 /* 1: at most one call; default 0: several, where the template prints several */
  uint32_t split_reasoning;          /* 1: reasoning comes as REASONING events, and `grammar` begins after it; so with tools, too. Default 0:
                                        all is TEXT, and `grammar` begins with the answer */
  uint32_t max_reasoning_tokens;     /* of split reasoning, which then ends; 0 (default): no limit */
  uint32_t continue_last;            /* 1: the conversation's last message is an answer that goes on, as if the model had just written it: after
                                        a limit, an edit, or a beginning that the caller wrote. The new text joins that message, and is what
                                        events have; `grammar` begins with the message's content. Reasoning in the message
                                        (reasoning_content) needs no split_reasoning: it is then 1. Default 0 */
  uint32_t grammar_any_order;        /* JSON schema: 1: the keys of an object may come in any order, at most 512 of them; default 0: the schema's */
  uint32_t reserved;
} orrery_generate_options;
ORRERY_API void orrery_generate_options_init(orrery_generate_options *options, size_t struct_size);

/* Begins the answer to the session's conversation. Checks the arguments and returns; orrery_next() does the work.
   While the generation is unfinished and not freed, the session is ORRERY_BUSY for everything but cancelling and reading.
   ORRERY_INVALID_ARGUMENT: an option is out of range, a stop string is empty or not UTF-8 (the message says which one), the conversation
   has no message, continue_last finds no assistant's text at its end, or the grammar has a fault: line, column. From orrery_next(): the message
   that goes on does not fit the grammar. ORRERY_UNSUPPORTED: the grammar needs what this version has not, which the
   message names, or more than 8 MiB of automata; later, from orrery_next(), it has become too ambiguous. */
ORRERY_API orrery_status orrery_generate(orrery_session *session, const orrery_generate_options *options,
                                         orrery_generation **generation, orrery_error *error);
/* Begins a continuation of tokens. The conversation does not change.
     tokens   (n_tokens) the whole sequence from its start. The session reuses the KV of their common prefix with the tokens that
              it holds, and drops its other tokens
   Otherwise as orrery_generate(). */
ORRERY_API orrery_status orrery_generate_tokens(orrery_session *session, const int32_t *tokens, size_t n_tokens,
                                                const orrery_generate_options *options, orrery_generation **generation, orrery_error *error);

#define ORRERY_EVENT_PROGRESS 1    /* done, total: prompt tokens computed (a chunk under way in part), and to compute; without
                                      reused tokens. First done is 0, before the first token is computed; at last done = total.
                                      Both come again if old turns make room in the middle of an answer */
#define ORRERY_EVENT_TOKEN 2       /* token, logprob, text, top: one token was chosen */
#define ORRERY_EVENT_TEXT 3        /* text: whole characters of the answer */
#define ORRERY_EVENT_DONE 4        /* finish_reason; every later call repeats it */
/* With tools, or split_reasoning: */
#define ORRERY_EVENT_REASONING 5   /* text: whole characters of the model's reasoning */
#define ORRERY_EVENT_CALL 6        /* call, name: a call begins */
#define ORRERY_EVENT_ARGUMENTS 7   /* call, name, text: the next part of its arguments. The parts of one call are one JSON object */
#define ORRERY_EVENT_CALL_END 8    /* call, name, call_id, text: all of its arguments, once more */
ORRERY_API const char *orrery_event_type_name(uint32_t type);

#define ORRERY_FINISH_END 1        /* the model ended its answer */
#define ORRERY_FINISH_STOP 2       /* a stop string; stop_index is its index in `stop` */
#define ORRERY_FINISH_LENGTH 3     /* max_tokens */
#define ORRERY_FINISH_CONTEXT 4    /* the context is full */
#define ORRERY_FINISH_CANCELLED 5  /* orrery_cancel(), orrery_session_cancel() or a callback. The text so far stays in the
                                      conversation. Before the first PROGRESS event nothing has changed */
#define ORRERY_FINISH_CALLS 6      /* the answer ends with calls, which wait for their results */
ORRERY_API const char *orrery_finish_reason_name(uint32_t reason);

typedef struct orrery_token_logprob {
  int32_t token;
  float logprob;                   /* natural logarithm, of the model's own distribution: before bias and sampling */
} orrery_token_logprob;

typedef struct orrery_event {
  uint32_t struct_size;
  uint32_t type;                   /* ORRERY_EVENT_ */
  uint64_t done, total;            /* PROGRESS */
  const char *text;                /* TEXT: UTF-8, whole characters. TOKEN: the token's raw bytes. Not NUL-terminated; valid
                                      until the next call on this generation */
  uint64_t text_bytes;
  const orrery_token_logprob *top; /* TOKEN: (n_top), likeliest first; valid until the next call */
  uint32_t n_top;
  int32_t token;                   /* TOKEN */
  float logprob;                   /* TOKEN */
  uint32_t finish_reason;          /* DONE: ORRERY_FINISH_ */
  uint32_t stop_index;             /* DONE by STOP */
  uint32_t complete;               /* DONE: 1: the text is whole by the grammar; 0 without one */
  uint64_t prompt_tokens, reused_tokens, generated_tokens;   /* DONE: of this answer */
  uint64_t first_token_us, prefill_us, decode_us;            /* DONE: from the first orrery_next() to the first token;
                                                                time in the model for the prompt, for the answer */
  const char *name;                /* CALL, ARGUMENTS, CALL_END: the tool's, NUL-terminated, until the next call on this generation; else NULL */
  const char *call_id;             /* the same of the call's id: the model's, or else made here. CALL and ARGUMENTS: "" where it follows later */
  uint32_t call;                   /* the call's number in the answer, from 0 */
  uint32_t reserved;
} orrery_event;
ORRERY_API void orrery_event_init(orrery_event *event, size_t struct_size);

/* Works until the next event, at most one step or one part of a prompt, and fills `event`, which _init has prepared. A part takes about a tenth of a
   second: some layers of a chunk, at least one. Between parts the runtime's other sessions compute. The first call makes the prompt: it renders the
   conversation, tokenizes it, drops old turns under ORRERY_OVERFLOW_DROP_OLDEST, and returns PROGRESS with done 0, before it computes anything. Its
   time grows with the length of the conversation; orrery_cancel() ends it within a tenth of a second. It returns the errors of the conversation:
     ORRERY_UNSUPPORTED_TEMPLATE  the model's file has no chat template, or one that cannot be rendered: line, column
     ORRERY_INVALID_ARGUMENT      the template refused the conversation (raise_exception); the message is the template's
     ORRERY_CONTEXT_FULL          the prompt is longer than the context. bytes_requested: its number of tokens, or a lower bound if it has
                                  more than twice the context; bytes_available: the context. Rendering stops where the text cannot fit
   After an error other than ORRERY_BUSY the generation is over. The conversation stays, the session keeps the KV that it has
   computed, and is no longer ORRERY_BUSY. */
ORRERY_API orrery_status orrery_next(orrery_generation *generation, orrery_event *event, orrery_error *error);

/* orrery_next() for one thread with several generations: works until the next event of one of them, and fills `event`. Decode
   steps of generations on one model share a pass over its weights. Events and errors are those of orrery_next() on each generation.
     generations  (count) handles; a NULL or a generation that is over is skipped, so an entry may be set to NULL when it is freed
     which        in: the index of the last event, or `count` at first; the search begins behind it, so that events take turns.
                  out: the index of the generation whose event or error this is; `count`: all are over, and `event` stays as it is
   A prompt's part and a step alternate. A generation computes alone with `speculate`, under a policy that waits for a link, or
   under one that fetches on the GPU. ORRERY_BUSY: other calls use the sessions of all generations that are not over. */
ORRERY_UNSTABLE ORRERY_API orrery_status orrery_next_any(orrery_generation *const *generations, size_t count, size_t *which, orrery_event *event,
                                                         orrery_error *error);

/* Sees an event of orrery_run(). Returns 0 to continue, another value to cancel. */
typedef int32_t (*orrery_event_fn)(void *user, const orrery_event *event);
/* Calls orrery_next() until the generation is over, and on_event with `user` and every event, DONE included. Errors are those of orrery_next(). */
ORRERY_API orrery_status orrery_run(orrery_generation *generation, orrery_event_fn on_event, void *user, orrery_error *error);

/* Cancels the generation: sets a flag and returns. Allowed from any thread, from a callback and from a signal handler, until the generation
   is freed. orrery_next(), also a call that runs, stops within a tenth of a second of rendering or of waiting (for a transfer of KV to the
   device, for another session's step), one layer of prefill or one token of decode. It reports DONE with ORRERY_FINISH_CANCELLED. */
ORRERY_API void orrery_cancel(orrery_generation *generation);
/* Ends the generation and frees it. The text so far stays in the conversation. While orrery_next() runs on another thread, it cancels and
   waits for that call. A callback of the generation must not call it: there, and after a longjmp() out of a callback, it cancels and
   returns without freeing. Call it again when the callback has returned. */
ORRERY_API void orrery_generation_free(orrery_generation *generation);

#ifdef __cplusplus
}
#endif
#endif /* ORRERY_H */
