// Models from specs with a key or a tensor changed, loaded as far as they go.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/cpu/cpu_backend.h"
#include "runtime/model/families/family.h"
#include "runtime/model/load/model.h"
#include "tests/support/model_spec.h"

namespace orrery::model {

using namespace orrery::testing;
using nlohmann::json;

inline constexpr uint64_t kArenaBytes = 4 << 20;

// Loads a spec's model as far as it goes.
inline Status load(const json& spec, const LoadOptions& options = {}, uint64_t arena_bytes = kArenaBytes) {
  const std::vector<std::byte> bytes = build_model_gguf(spec);
  auto backend = cpu::make_backend({1, "plain"});
  if (!backend.ok()) return backend.take_status();
  ORRERY_TRY((*backend)->reserve_arena(arena_bytes));
  Turns turns(std::move(backend).value());
  kv::Arena arena(&turns.device(), arena_bytes);
  ORRERY_ASSIGN(gguf::File file, gguf::File::parse(bytes, "m.gguf"));
  const Status status = load_model(std::move(file), &turns, &arena, options).take_status();
  EXPECT_EQ(arena.used(), 0u);
  return status.ok() ? ok_status() : error(status.code(), "%s", status.message());
}

// What a spec's header says of the model.
inline Description described(const json& spec) {
  const std::vector<std::byte> bytes = build_model_gguf(spec);
  auto file = gguf::File::parse(bytes, "m.gguf");
  EXPECT_TRUE(file.ok());
  auto d = read_description(*file, {});
  EXPECT_TRUE(d.ok()) << d.status().message();
  return d.ok() ? std::move(d).value() : Description{};
}

inline void expect_refused(const json& spec, Code code, const std::string& words, const LoadOptions& options = {}) {
  const Status status = load(spec, options);
  EXPECT_EQ(status.code(), code) << words << ": " << status.message();
  EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << "no '" << words << "' in: " << status.message();
  EXPECT_EQ(std::string(status.message()).rfind("m.gguf: ", 0), 0u) << status.message();
}

inline json spec_of(const std::string& name) { return load_model_spec(name); }
// Sets a key, or adds it.
inline json with(json spec, const std::string& key, const char* type, const json& value) {
  for (json& entry : spec["keys"])
    if (entry[0] == key) {
      entry = {key, type, value};
      return spec;
    }
  spec["keys"].push_back({key, type, value});
  return spec;
}
inline json without(json spec, const std::string& key) {
  json kept = json::array();
  for (const json& entry : spec["keys"])
    if (entry[0] != key) kept.push_back(entry);
  spec["keys"] = kept;
  return spec;
}
inline json& tensor(json& spec, const std::string& name) {
  for (json& t : spec["tensors"])
    if (t["name"] == name) return t;
  throw std::runtime_error("no tensor " + name);
}
inline json without_tensor(json spec, const std::string& name) {
  json kept = json::array();
  for (const json& t : spec["tensors"])
    if (t["name"] != name) kept.push_back(t);
  spec["tensors"] = kept;
  return spec;
}
inline json with_tensor(json spec, const std::string& name, std::vector<uint64_t> shape) {
  spec["tensors"].push_back({{"name", name}, {"shape", shape}, {"scale", 0.1}, {"offset", 0.0}});
  return spec;
}

}  // namespace orrery::model
