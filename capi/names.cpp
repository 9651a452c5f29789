// Names of constants, for messages and bindings, spelt as in orrery.h. bindings/generate.py --check looks here for every constant that has
// a name function.
#include "capi/handles.h"

#define ORRERY_NAME(constant) \
  case constant: return #constant;

extern "C" {

const char* orrery_status_name(orrery_status status) {
  switch (status) {
    ORRERY_NAME(ORRERY_OK)
    ORRERY_NAME(ORRERY_INVALID_ARGUMENT)
    ORRERY_NAME(ORRERY_OUT_OF_DEVICE_MEMORY)
    ORRERY_NAME(ORRERY_OUT_OF_PINNED_MEMORY)
    ORRERY_NAME(ORRERY_OUT_OF_HOST_MEMORY)
    ORRERY_NAME(ORRERY_CONTEXT_FULL)
    ORRERY_NAME(ORRERY_CANCELLED)
    ORRERY_NAME(ORRERY_BAD_MODEL)
    ORRERY_NAME(ORRERY_UNSUPPORTED_ARCHITECTURE)
    ORRERY_NAME(ORRERY_UNSUPPORTED_QUANTIZATION)
    ORRERY_NAME(ORRERY_UNSUPPORTED_TEMPLATE)
    ORRERY_NAME(ORRERY_UNSUPPORTED)
    ORRERY_NAME(ORRERY_BUSY)
    ORRERY_NAME(ORRERY_DEVICE_LOST)
    ORRERY_NAME(ORRERY_IO)
    ORRERY_NAME(ORRERY_BAD_SESSION)
    ORRERY_NAME(ORRERY_INTERNAL)
    default: return "unknown status";
  }
}

const char* orrery_log_level_name(int32_t level) {
  switch (level) {
    ORRERY_NAME(ORRERY_LOG_ERROR)
    ORRERY_NAME(ORRERY_LOG_WARNING)
    ORRERY_NAME(ORRERY_LOG_INFO)
    ORRERY_NAME(ORRERY_LOG_DEBUG)
    ORRERY_NAME(ORRERY_LOG_TRACE)
    default: return "unknown log level";
  }
}

const char* orrery_reservoir_mode_name(uint32_t mode) {
  switch (mode) {
    ORRERY_NAME(ORRERY_RESERVOIR_PAGEABLE)
    ORRERY_NAME(ORRERY_RESERVOIR_PINNED)
    default: return "unknown reservoir mode";
  }
}

const char* orrery_gpu_use_name(uint32_t gpu_use) {
  switch (gpu_use) {
    ORRERY_NAME(ORRERY_GPU_USED)
    ORRERY_NAME(ORRERY_GPU_NOT_WANTED)
    ORRERY_NAME(ORRERY_GPU_NOT_BUILT)
    ORRERY_NAME(ORRERY_GPU_NO_DRIVER)
    ORRERY_NAME(ORRERY_GPU_DRIVER_TOO_OLD)
    ORRERY_NAME(ORRERY_GPU_NONE)
    ORRERY_NAME(ORRERY_GPU_REFUSED)
    default: return "unknown gpu use";
  }
}

const char* orrery_priority_name(int32_t priority) {
  switch (priority) {
    ORRERY_NAME(ORRERY_PRIORITY_NORMAL)
    ORRERY_NAME(ORRERY_PRIORITY_LOW)
    default: return "unknown priority";
  }
}

const char* orrery_kv_type_name(uint32_t type) {
  switch (type) {
    ORRERY_NAME(ORRERY_KV_F16)
    ORRERY_NAME(ORRERY_KV_F32)
    ORRERY_NAME(ORRERY_KV_Q8_0)
    ORRERY_NAME(ORRERY_KV_Q4_0)
    ORRERY_NAME(ORRERY_KV_K8V4)
    default: return "unknown KV type";
  }
}

const char* orrery_pooling_name(uint32_t pooling) {
  switch (pooling) {
    ORRERY_NAME(ORRERY_POOLING_MODEL)
    ORRERY_NAME(ORRERY_POOLING_MEAN)
    ORRERY_NAME(ORRERY_POOLING_FIRST)
    ORRERY_NAME(ORRERY_POOLING_LAST)
    ORRERY_NAME(ORRERY_POOLING_NONE)
    default: return "unknown pooling";
  }
}

const char* orrery_rope_scaling_name(uint32_t scaling) {
  switch (scaling) {
    ORRERY_NAME(ORRERY_ROPE_FROM_FILE)
    ORRERY_NAME(ORRERY_ROPE_NONE)
    ORRERY_NAME(ORRERY_ROPE_LINEAR)
    ORRERY_NAME(ORRERY_ROPE_YARN)
    ORRERY_NAME(ORRERY_ROPE_LLAMA3)
    ORRERY_NAME(ORRERY_ROPE_LONGROPE)
    default: return "unknown RoPE scaling";
  }
}

const char* orrery_region_kind_name(uint32_t kind) {
  switch (kind) {
    ORRERY_NAME(ORRERY_REGION_WEIGHTS)
    ORRERY_NAME(ORRERY_REGION_WORKSPACE)
    ORRERY_NAME(ORRERY_REGION_KV)
    ORRERY_NAME(ORRERY_REGION_SUMMARIES)
    ORRERY_NAME(ORRERY_REGION_STAGING)
    ORRERY_NAME(ORRERY_REGION_TABLES)
    default: return "unknown region kind";
  }
}

const char* orrery_source_kind_name(uint32_t kind) {
  switch (kind) {
    ORRERY_NAME(ORRERY_SOURCE_PATH)
    ORRERY_NAME(ORRERY_SOURCE_FD)
    ORRERY_NAME(ORRERY_SOURCE_MEMORY)
    default: return "unknown source kind";
  }
}

const char* orrery_layer_kind_name(uint32_t kind) {
  switch (kind) {
    ORRERY_NAME(ORRERY_LAYER_ATTENTION)
    ORRERY_NAME(ORRERY_LAYER_WINDOW)
    ORRERY_NAME(ORRERY_LAYER_LATENT)
    ORRERY_NAME(ORRERY_LAYER_RECURRENT)
    ORRERY_NAME(ORRERY_LAYER_NONE)
    default: return "unknown layer kind";
  }
}

const char* orrery_load_mode_name(uint32_t mode) {
  switch (mode) {
    ORRERY_NAME(ORRERY_LOAD_MAP)
    ORRERY_NAME(ORRERY_LOAD_READ)
    default: return "unknown load mode";
  }
}

const char* orrery_overflow_name(uint32_t overflow) {
  switch (overflow) {
    ORRERY_NAME(ORRERY_OVERFLOW_STOP)
    ORRERY_NAME(ORRERY_OVERFLOW_DROP_OLDEST)
    default: return "unknown overflow";
  }
}

const char* orrery_speculate_name(uint32_t speculate) {
  switch (speculate) {
    ORRERY_NAME(ORRERY_SPECULATE_OFF)
    ORRERY_NAME(ORRERY_SPECULATE_NGRAM)
    ORRERY_NAME(ORRERY_SPECULATE_POLICY)
    ORRERY_NAME(ORRERY_SPECULATE_DRAFT)
    ORRERY_NAME(ORRERY_SPECULATE_MTP)
    default: return "unknown speculation";
  }
}

const char* orrery_event_type_name(uint32_t type) {
  switch (type) {
    ORRERY_NAME(ORRERY_EVENT_PROGRESS)
    ORRERY_NAME(ORRERY_EVENT_TOKEN)
    ORRERY_NAME(ORRERY_EVENT_TEXT)
    ORRERY_NAME(ORRERY_EVENT_DONE)
    ORRERY_NAME(ORRERY_EVENT_REASONING)
    ORRERY_NAME(ORRERY_EVENT_CALL)
    ORRERY_NAME(ORRERY_EVENT_ARGUMENTS)
    ORRERY_NAME(ORRERY_EVENT_CALL_END)
    default: return "unknown event type";
  }
}

const char* orrery_finish_reason_name(uint32_t reason) {
  switch (reason) {
    ORRERY_NAME(ORRERY_FINISH_END)
    ORRERY_NAME(ORRERY_FINISH_STOP)
    ORRERY_NAME(ORRERY_FINISH_LENGTH)
    ORRERY_NAME(ORRERY_FINISH_CONTEXT)
    ORRERY_NAME(ORRERY_FINISH_CANCELLED)
    ORRERY_NAME(ORRERY_FINISH_CALLS)
    default: return "unknown finish reason";
  }
}

const char* orrery_tools_name(uint32_t tools) {
  switch (tools) {
    ORRERY_NAME(ORRERY_TOOLS_IGNORED)
    ORRERY_NAME(ORRERY_TOOLS_AUTO)
    ORRERY_NAME(ORRERY_TOOLS_NONE)
    ORRERY_NAME(ORRERY_TOOLS_REQUIRED)
    default: return "unknown tools";
  }
}

const char* orrery_grammar_kind_name(uint32_t kind) {
  switch (kind) {
    ORRERY_NAME(ORRERY_GRAMMAR_GBNF)
    ORRERY_NAME(ORRERY_GRAMMAR_JSON_SCHEMA)
    ORRERY_NAME(ORRERY_GRAMMAR_REGEX)
    default: return "unknown grammar kind";
  }
}

const char* orrery_whitespace_name(uint32_t whitespace) {
  switch (whitespace) {
    ORRERY_NAME(ORRERY_WHITESPACE_FREE)
    ORRERY_NAME(ORRERY_WHITESPACE_COMPACT)
    ORRERY_NAME(ORRERY_WHITESPACE_SPACED)
    default: return "unknown whitespace";
  }
}

}  // extern "C"
