// The table of policies: one line for each, by name. methods/ and published/ have the file of each.
#pragma once

#include <memory>

#include "runtime/base/status.h"
#include "runtime/policy/policy.h"

// To add a method: its file in methods/ or published/, which defines a constexpr Method, and its line here.
#define ORRERY_POLICIES(METHOD) \
  METHOD(kAdaKv)                \
  METHOD(kAdaPyramid)           \
  METHOD(kArkVale)              \
  METHOD(kAuto)                 \
  METHOD(kCake)                 \
  METHOD(kDuoAttention)         \
  METHOD(kFreeKv)               \
  METHOD(kFull)                 \
  METHOD(kH2O)                  \
  METHOD(kHeteroCache)          \
  METHOD(kInfiniGen)            \
  METHOD(kKeyCodes)             \
  METHOD(kLoki)                 \
  METHOD(kOmniKv)               \
  METHOD(kPyramidKv)            \
  METHOD(kQuest)                \
  METHOD(kRaas)                 \
  METHOD(kRazorAttention)       \
  METHOD(kShadowKv)             \
  METHOD(kShadowKvPlus)         \
  METHOD(kSnapKv)               \
  METHOD(kStreaming)            \
  METHOD(kSyncKv)

namespace orrery::policy {

using MadePolicy = Result<std::unique_ptr<Policy>>;

// A policy: what people read of it, what it needs of the engine, how it is made.
struct Method {
  PolicyRow row;
  Needs needs;
  MadePolicy (*make)(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile& profile);  // "full": null
};

#define ORRERY_DECLARE_METHOD(name) extern const Method name;
ORRERY_POLICIES(ORRERY_DECLARE_METHOD)
#undef ORRERY_DECLARE_METHOD

// Queries of the last positions that the engine keeps: for policies that score by a window of queries, and for pages that heads share by
// what some queries attend to (heads=adaptive).
inline constexpr uint32_t kMaxWindow = 64, kPageQueries = 16, kMaxPool = 63;

}  // namespace orrery::policy
