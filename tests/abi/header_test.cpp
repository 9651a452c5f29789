// orrery.h as C++17: the same layout, trivial structs, and the rules of the contract that a compiler can check.
#include <orrery_lab.h>

#include <type_traits>

#if UINTPTR_MAX == UINT64_MAX
#define ORRERY_SIZE(type, bytes)                                                              \
  static_assert(sizeof(type) == (bytes), #type);                                              \
  static_assert(std::is_standard_layout<type>::value && std::is_trivial<type>::value, #type); \
  static_assert(sizeof(type) % 8 == 0, #type " does not grow in units of 8 bytes");
#define ORRERY_OFFSET(type, field, bytes) static_assert(offsetof(type, field) == (bytes), #type "." #field);
#include "header_layout.inc"
#undef ORRERY_SIZE
#undef ORRERY_OFFSET

// Every struct that a caller hands over begins with its size; those that lie in arrays do not.
template <class T>
constexpr bool begins_with_size() {
  return offsetof(T, struct_size) == 0 && std::is_same<decltype(T::struct_size), uint32_t>::value;
}
static_assert(begins_with_size<orrery_error>() && begins_with_size<orrery_device_info>() && begins_with_size<orrery_runtime_options>() &&
              begins_with_size<orrery_runtime_info>() && begins_with_size<orrery_vocab_info>() &&
              begins_with_size<orrery_template_options>() && begins_with_size<orrery_plan_result>() &&
              begins_with_size<orrery_model_options>() && begins_with_size<orrery_model_info>() &&
              begins_with_size<orrery_session_options>() && begins_with_size<orrery_stats>() &&
              begins_with_size<orrery_calibrate_options>() && begins_with_size<orrery_generate_options>() &&
              begins_with_size<orrery_event>());
#endif

static_assert(std::is_same<orrery_status, int32_t>::value);
static_assert(ORRERY_ABI_VERSION >= 1u);
