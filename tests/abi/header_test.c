/* orrery.h as C99 sees it: the layout, and that every type and macro is usable with nothing else included. */
#include <orrery_lab.h>

/* C99 has no static assertion: an array of negative size does not compile. */
#define ORRERY_JOIN2(a, b) a##b
#define ORRERY_JOIN(a, b) ORRERY_JOIN2(a, b)
#define ORRERY_HOLDS(condition) typedef char ORRERY_JOIN(holds_at_line_, __LINE__)[(condition) ? 1 : -1]
#define ORRERY_SIZE(type, bytes) ORRERY_HOLDS(sizeof(struct type) == (bytes));
#define ORRERY_OFFSET(type, field, bytes) ORRERY_HOLDS(offsetof(struct type, field) == (bytes));

#if UINTPTR_MAX == UINT64_MAX
#include "header_layout.inc"
#endif

orrery_status orrery_header_test(void);
orrery_status orrery_header_test(void) { return ORRERY_OK; }
