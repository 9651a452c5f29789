// The options of a session, and what they decide about the KV: its formats, its policy, and the policy's budget in slots.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/backend/device.h"
#include "runtime/backend/kv.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/adapters.h"
#include "runtime/model/load/model.h"
#include "runtime/policy/policy.h"

namespace orrery::engine {

class Folder;

inline constexpr uint32_t kMaxContext = 1u << 27;

enum class Overflow : uint8_t { stop, drop_oldest };
inline constexpr uint32_t kMostGuesses = 7;  // of a step
static_assert(kMostGuesses <= kMostGuessedRows);
// How decode guesses tokens ahead: ngram out of earlier text, policy by the resident KV, draft by a smaller model, mtp by the model's own
// head. Tokens are verified by full KV, so all modes answer as full attention does.
enum class Speculate : uint8_t { off, ngram, policy, draft, mtp };
inline constexpr uint32_t kHeadChunk = 64;  // most tokens of a step of a head: its workspace stays small
// By number of guesses, from 1 on: the time that they add to a step, as a share of a step of one token.
using GuessCosts = std::array<double, kMostGuesses>;

// Turns of key codes (KeyCodeFormat::n_turns): how many a head has, and the RoPE that turns, AttentionShape::rope.
struct CodeTurns {
  uint32_t n_turns = 0, n_pairs = 0;
  bool interleaved = false;
  int32_t rope = -1;
};

struct SessionOptions {
  uint32_t n_context = 0;       // 0: as trained, or less if less fits
  std::string policy = "full";  // a name of policy::make_policy, or "full"
  bool automatic = false;       // nobody named a policy: "full", or "auto" if a given n_context does not fit (plan_session decides)
  policy::Options policy_options;
  double kv_share = 1.0;         // budget of policies other than full: a share of the bytes of full KV in kv_type
  uint64_t kv_budget_bytes = 0;  // or in bytes; 0: kv_share counts
  std::shared_ptr<const policy::HeadProfile> head_profile;  // of this model; null: policies calibrate themselves
  KvType kv_type = KvType::f16;                             // of the pages
  std::optional<KvType> device_kv_type;                     // of resident KV: kv_type or coarser; none: the policy's choice
  Overflow overflow = Overflow::stop;
  uint32_t chunk_tokens = 0;             // 0: plan_session() decides; before that, 256
  uint32_t window_slack = 0;             // 0: kWindowSlack
  bool reuse_prompts = false;            // generations take the KV of earlier prompts from the prefix tree, and keep theirs there
  std::shared_ptr<const Folder> folder;  // generations take the KV of saved prompts from there; null: none
  bool load_behind = false;              // files are loaded with their pages behind (SessionFile::Pages)
  Speculate speculate = Speculate::off;
  uint32_t speculate_tokens = 0;                    // guesses of a step: at most kMostGuesses; 0: as many
  std::optional<GuessCosts> guess_costs;            // none: the session's estimate (Session::guess_costs)
  std::shared_ptr<const ModelSource> draft_source;  // Speculate::draft, in a plan alone: of the model that drafts, instead of draft_model
  // Speculate::draft: drafts, also for several sessions. Speculate::mtp: Session::open() opens the model's head.
  std::shared_ptr<LanguageModel> draft_model;
  Adapters adapters;
  bool finds_by_codes = false;  // policy::Shape::finds_by_codes: set by see_device()
  bool codes_values = false;    // BackendInfo::codes_values: set by see_device()
  bool drafts = false;          // a session that drafts for another one: it belongs to that session, and takes no session slot
  bool embeds = false;          // a session of one call that computes embeddings: it takes no session slot

  Status validate(const model::Description& h) const;
  // Notes what policies may count on. moves_directly: engine::moves_directly().
  void see_device(const BackendInfo& device, bool moves_directly) {
    finds_by_codes = device.has_key_codes && device.attends_positions && moves_directly && speculate != Speculate::policy;
    codes_values = device.codes_values;
  }
  // Whether the policy can divide the model's KV.
  Status check_policy_fits(const model::Description& h) const;
  // Errors of the decided policy on a device: unsupported guesses, KV types that its attention does not read.
  Status check_device(const Device& device, const model::Description& h) const;
  Status check_drafts(const policy::Policy& made) const;  // unsupported: the policy cannot draft
  uint32_t chunk() const;
  // Of a session of this context: an encoder's rows see each other, so all of a text is one chunk.
  uint32_t chunk_of(const model::Description& h, uint32_t context) const { return h.encoder ? context : chunk(); }
  bool compressed() const { return policy != "full"; }
  // Of the session that drafts for a session of n_context tokens: full KV in F16.
  SessionOptions of_draft(uint32_t n_context) const;
  KvType resident_type(const model::Description& h) const;
  // policy::Shape::in_place. A device type asks for values that the reservoir does not have, and F32 has more bytes than a gathered token.
  bool in_place(const model::Description& h) const;
  // None where the device's codes have none, or where keys are stored rotated: then RoPE turns no pair of their dimensions.
  CodeTurns code_turns(const model::Description& h) const;
  // How the session changes its KV before it is stored (KvTransform). Centred: where form_type() is quantized. Rotated: where K or V has 4
  // bits.
  bool centred(const model::Description& h) const;
  bool rotated(const model::Description& h) const;
  // The type that the form of stored KV serves: Q4_0 where resident KV has it in K or V, else the pages' type. Under speculate policy
  // always the pages' type: pages verify the tokens, which are full attention's to the bit.
  KvType form_type(const model::Description& h) const;
};

KvFormat kv_format(const model::Description& h, KvType type, size_t group = 0);

// Whether a KV group is kept in a ring of pages: that of layers with a window, next to layers without. Where all layers have windows, a
// policy may divide group 0, and its pages are kept.
bool in_ring(const model::Description& h, size_t group);
// A ring has this many tokens more than its window: rewinds of as many tokens compute none again. It has more if a chunk needs them.
inline constexpr uint32_t kWindowSlack = 1024;
// Pages that a session reserves of a group.
uint32_t group_pages(const model::Description& h, const SessionOptions& options, uint32_t n_context, size_t group);
uint64_t page_bytes(const model::Description& h, KvType type);     // of a page of all groups but rings
uint64_t windows_bytes(const model::Description& h, KvType type);  // kv::SequencePages::windows_bytes()

// The policy of a compressed session, and the number of slots of its budget.
Result<std::unique_ptr<policy::Policy>> make_policy(const model::Description& h, const SessionOptions& options, uint32_t n_context);
uint64_t resident_slots(const model::Description& h, const SessionOptions& options, uint32_t n_context);

}  // namespace orrery::engine
