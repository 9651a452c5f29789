// How the policies of methods/ are made.
#pragma once

#include <memory>

#include "runtime/policy/policy.h"

namespace orrery::policy {

// The queries of so many last positions are kept for policies that look through a window of them, and for pages that are dealt out by
// what some of them look at.
inline constexpr uint32_t kMostWindow = 64, kPageQueries = 16;

Result<std::unique_ptr<Policy>> make_streaming(const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_heterocache(const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_synckv(const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_h2o(const Shape&, const Budget&, const Options&, const SharedProfile&);
// The methods of static_heads.cpp, by name.
Result<std::unique_ptr<Policy>> make_static_heads(const char* name, const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_raas(const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_infinigen(const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_loki(const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_omnikv(const Shape&, const Budget&, const Options&, const SharedProfile&);
// The methods of window.cpp, by name.
Result<std::unique_ptr<Policy>> make_window(const char* name, const Shape&, const Budget&, const Options&);
// The methods of pages.cpp, by name.
Result<std::unique_ptr<Policy>> make_pages(const char* name, const Shape&, const Budget&, const Options&);
// Those of shadowkv.cpp, by name.
Result<std::unique_ptr<Policy>> make_shadowkv(const char* name, const Shape&, const Budget&, const Options&);

}  // namespace orrery::policy
