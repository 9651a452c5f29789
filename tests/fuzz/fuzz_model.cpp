// A model file from a stranger, all the way: header, description, tensors, tokenizer, a plan, opening, a
// few tokens. The input is a recipe (recipe.h): the first bytes choose one of the golden models (every family
// is among them) and how its weights are stored, frames are edits.
//
// Bytes in front: model; storage of matrices; storage of vectors and how the file is loaded; the prompt. Bit 128 of the third byte: the file
// is written, and opened by its path, which takes twice as long; else it is opened in memory.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/fuzz/frames.h"
#include "tests/fuzz/recipe.h"
#include "tests/support/model_spec.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace orrery;
using namespace orrery::fuzz;
using namespace orrery::testing;

constexpr size_t kHead = 4;
constexpr size_t kMostFrames = 24;
constexpr uint32_t kContext = 48;

struct World {
  TempDir dir;
  Runtime runtime;
  std::vector<std::string> names = model_spec_names();
  std::map<uint32_t, FileParts> bases;
  FileParts input;  // edited: its vectors keep their memory from one input to the next, and so does the file
  std::vector<std::byte> file;
  uint64_t idle_bytes = 0;

  World() {
    orrery_runtime_options o = runtime_options();
    o.n_threads = 1;
    o.device_budget_bytes = uint64_t{32} << 20;
    CheckedError error;
    orrery_runtime* h = nullptr;
    require(error.check(orrery_runtime_create(&o, &h, error.get())) == ORRERY_OK, "the runtime opens");
    runtime.reset(h);
    idle_bytes = arena_used(runtime);
  }
  const FileParts& base(uint8_t model, uint8_t matrices, uint8_t vectors) {
    static constexpr TensorType kVectors[] = {TensorType::f32, TensorType::f16, TensorType::bf16};
    const size_t which = model % names.size(), types = std::size(kTypeTraits);
    const uint32_t key = static_cast<uint32_t>((which * types + matrices % types) * std::size(kVectors) + vectors % std::size(kVectors));
    if (const auto it = bases.find(key); it != bases.end()) return it->second;
    const nlohmann::json spec = load_model_spec(names[which]);
    MatrixStorage storage;
    storage.vectors = kVectors[vectors % std::size(kVectors)];
    const TensorType type = kTypeTraits[matrices % types].type;
    if (can_store(spec, type)) storage.type = type;
    FileParts parts = FileParts::take_apart(build_model_gguf(spec, storage));
    parts.keys.push_back({"tokenizer.chat_template", static_cast<uint32_t>(gguf::ValueType::string),
                          ByteWriter().text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}").bytes});
    return bases.emplace(key, std::move(parts)).first->second;
  }
};

bool is_about_the_file(orrery_status s) {
  return s == ORRERY_BAD_MODEL || s == ORRERY_UNSUPPORTED_ARCHITECTURE || s == ORRERY_UNSUPPORTED_QUANTIZATION || s == ORRERY_UNSUPPORTED ||
         s == ORRERY_OUT_OF_DEVICE_MEMORY || s == ORRERY_OUT_OF_HOST_MEMORY;
}

void use_vocabulary(const Model& model) {
  const Vocab vocab(orrery_model_vocab(model.get()));
  require(vocab != nullptr, "a model has a vocabulary");
  const std::string text = "a <s> \xC3\xA9 x";
  std::vector<int32_t> ids;
  const orrery_status status = sized_out<int32_t>(
      [&](int32_t* out, size_t capacity, size_t* n, orrery_error* error) {
        return orrery_tokenize(vocab.get(), text.data(), text.size(), ORRERY_TOKENIZE_BOS, out, capacity, n, error);
      },
      &ids);
  require(status == ORRERY_OK, "any text can be tokenized");
  std::vector<char> back;
  require(sized_out<char>(
              [&](char* out, size_t capacity, size_t* n, orrery_error* error) {
                return orrery_detokenize(vocab.get(), ids.data(), ids.size(), 1, out, capacity, n, error);
              },
              &back) == ORRERY_OK,
          "tokens that came of a text stand for bytes");
}

// Whatever numbers are in it, a session answers.
void use_session(const Model& model, const Session& session, uint8_t seed) {
  CheckedError error;
  orrery_model_info info = options(&orrery_model_info_init);
  require(error.check(orrery_model_get_info(model.get(), &info, error.get())) == ORRERY_OK, "a model tells of itself");
  require(info.n_vocab > 0 && info.n_layers > 0, "a model has tokens and layers");
  std::vector<int32_t> prompt(1 + seed % 4);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>((seed * uint64_t{31} + i * 17) % info.n_vocab);
  std::vector<float> logits(prompt.size() * info.n_vocab);
  const orrery_status evaluated =
      error.check(orrery_session_evaluate(session.get(), prompt.data(), prompt.size(), logits.data(), error.get()));
  require(evaluated == ORRERY_OK || evaluated == ORRERY_BAD_MODEL, "tokens are computed, or the model is at fault", (*error).message);
  const bool conversation = (seed & 64) != 0;
  orrery_generate_options o = generate_options(2);
  o.ignore_end = 1;
  o.temperature = conversation ? 0.8f : 0.0f;
  o.n_logprobs = 2;
  orrery_generation* h = nullptr;
  if (conversation) {
    require(error.check(orrery_session_add_message(session.get(), "user", "hi", error.get())) == ORRERY_OK, "a message is added");
    if (error.check(orrery_generate(session.get(), &o, &h, error.get())) != ORRERY_OK) return;
  } else if (error.check(orrery_generate_tokens(session.get(), prompt.data(), prompt.size(), &o, &h, error.get())) != ORRERY_OK) {
    fault("a continuation of tokens begins", (*error).message);
  }
  const Generation generation(h);
  orrery_event e = options(&orrery_event_init);
  while (e.type != ORRERY_EVENT_DONE) {
    const orrery_status s = error.check(orrery_next(h, &e, error.get()));
    // The first call makes the prompt: a template may refuse the conversation, or make too long a text of it.
    const bool refused = conversation && (s == ORRERY_UNSUPPORTED_TEMPLATE || s == ORRERY_INVALID_ARGUMENT || s == ORRERY_CONTEXT_FULL ||
                                          s == ORRERY_UNSUPPORTED);
    require(s == ORRERY_OK || s == ORRERY_BAD_MODEL || refused, "an answer goes on, or the model is at fault", (*error).message);
    if (s != ORRERY_OK) break;
    if (e.type == ORRERY_EVENT_TOKEN) require(e.token >= 0 && static_cast<uint32_t>(e.token) < info.n_vocab, "a token of the vocabulary");
    if (e.type == ORRERY_EVENT_TEXT) require(whole_utf8({e.text, e.text_bytes}), "text is whole UTF-8");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World world;
  const Framed input = Framed::parse(data, size, kHead);
  FileParts& parts = world.input;
  parts = world.base(input.head[0], input.head[1], input.head[2] & 3);
  for (size_t i = 0; i < std::min(input.frames.size(), kMostFrames); ++i) {
    Reader r(input.frames[i].arguments.data(), input.frames[i].arguments.size());
    apply(static_cast<Edit>(input.frames[i].operation % kEdits), &r, &parts);
  }
  const std::vector<std::byte>& file = world.file;
  parts.build(&world.file);
  const bool by_path = (input.head[2] & 128) != 0;
  const std::string path = by_path ? world.dir.write("model.gguf", file) : "";
  const Source source = by_path ? path_source(path) : memory_source(file.data(), file.size());

  CheckedError error;
  orrery_runtime_options r = runtime_options();
  r.n_threads = 1;
  r.device_budget_bytes = uint64_t{32} << 20;
  orrery_model_options m = model_options();
  m.load = (input.head[2] & 4) ? ORRERY_LOAD_READ : ORRERY_LOAD_MAP;
  m.full_fingerprint = (input.head[2] & 8) ? 1 : 0;
  if (input.head[2] & 16) {
    m.rope_scaling = input.head[3] % 7;
    m.rope_scale = static_cast<float>(input.head[3]) / 16.0f;
  }
  orrery_session_options s = session_options();
  s.n_context = kContext;
  s.policy = "full";
  s.kv_type = (input.head[2] & 32) ? ORRERY_KV_Q8_0 : ORRERY_KV_F16;
  orrery_plan_result plan = options(&orrery_plan_result_init);
  const orrery_status planned = error.check(orrery_plan(source, &r, &m, &s, &plan, error.get()));
  require(planned == ORRERY_OK || planned == ORRERY_INVALID_ARGUMENT || is_about_the_file(planned),
          "a plan, or what is wrong with the file", (*error).message);

  orrery_model* h = reinterpret_cast<orrery_model*>(1);
  const orrery_status opened = error.check(orrery_model_open(world.runtime.get(), source, &m, &h, error.get()));
  require((opened == ORRERY_OK) == (h != nullptr), "a model, or NULL");
  const Model model(h);
  if (opened != ORRERY_OK) {
    require(opened == ORRERY_INVALID_ARGUMENT || is_about_the_file(opened), "a model, or what is wrong with it", (*error).message);
  } else {
    orrery_session* session_handle = reinterpret_cast<orrery_session*>(1);
    const orrery_status begun = error.check(orrery_session_open(model.get(), &s, &session_handle, error.get()));
    require((begun == ORRERY_OK) == (session_handle != nullptr), "a session, or NULL");
    const Session session(session_handle);
    require((planned == ORRERY_OK && plan.fits) == (begun == ORRERY_OK), "a session opens where the plan says that it fits",
            (*error).message);
    use_vocabulary(model);
    if (begun == ORRERY_OK) {
      require(arena_used(world.runtime) == world.idle_bytes + plan.device_bytes, "a session takes what was planned");
      use_session(model, session, input.head[3]);
      require(arena_used(world.runtime) == world.idle_bytes + plan.device_bytes, "working takes no more");
    }
  }
  return 0;
}

ORRERY_FRAMED_MUTATOR(kHead, kEdits)
