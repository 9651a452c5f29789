// The C interface as a program of calls, in any order, on handles that live, that are NULL, whose model and
// runtime are gone. The input is frames (frames.h): an operation each, with its arguments; handles are named
// by slot.
//
// Byte in front: 1 begins with a runtime, a model and a session; 2 with a small arena. What must hold stands
// in checks.h and call_table.h, and beside each call: a call that fails gives NULL or 0 and changes nothing,
// BUSY means a generation under way, and at the end every session still works.
#include "tests/fuzz/call_table.h"
#include "tests/fuzz/frames.h"

namespace {

using namespace orrery;
using namespace orrery::fuzz;
using namespace orrery::testing;

constexpr size_t kHead = 1;
// Steps are small, so that a program of them takes milliseconds: contexts of a page of 64 tokens and a little, answers of a few.
constexpr size_t kMostFrames = 24, kMostTokens = 48, kMostText = 48;
constexpr uint32_t kMostContext = 128;

struct Files {
  TempDir dir;
  std::string paths[5];
  std::vector<std::string> policies;

  Files() {
    TinyModel tiny;
    tiny.n_layers = 1;
    tiny.n_embd = 32;  // the model that programs begin with: one head; b.gguf has two heads on one KV head, and two layers
    tiny.context = 256;
    paths[0] = dir.write("a.gguf", tiny.build());
    tiny.seed = 2;
    tiny.n_embd = 64;
    tiny.n_layers = 2;
    paths[1] = dir.write("b.gguf", tiny.build());
    tiny.tensors = false;
    paths[2] = dir.write("vocab.gguf", tiny.build());
    paths[3] = dir.file("absent.gguf");
    paths[4] = dir.write("broken.gguf", std::vector<std::byte>(64, std::byte{0x47}));
    // Policies by the library's own table.
    std::vector<char> json;
    require(sized_out<char>([](char* t, size_t m, size_t* n, orrery_error* e) { return orrery_policies(t, m, n, e); }, &json) == ORRERY_OK,
            "the table of policies is there");
    const std::string text(json.begin(), json.end()), name = "{\"name\": \"";
    for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) {
      const size_t from = at + name.size();
      const std::string found = text.substr(from, text.find('"', from) - from);
      if (text.compare(from + found.size(), 12, "\", \"method\":") == 0) policies.push_back(found);
    }
    require(policies.size() > 10, "the table of policies has rows");
  }
};

const Files& files() {
  static const Files all;
  return all;
}

// What a failed call must leave as it was.
struct Snapshot {
  size_t n_messages, n_tokens;
  explicit Snapshot(const orrery_session* s) : n_messages(orrery_session_n_messages(s)), n_tokens(orrery_session_n_tokens(s)) {}
  bool operator==(const Snapshot& o) const { return n_messages == o.n_messages && n_tokens == o.n_tokens; }
};

class Program {
 public:
  Program(CallTable* table, Reader* r) : t_(*table), r_(*r) {}

  void create_runtime() {
    orrery_runtime*& slot = t_.runtimes[few()];
    orrery_runtime_options o = runtime_options();
    o.n_threads = 1 + r_.byte() % 2;
    o.device_budget_bytes = uint64_t{1} << (18 + r_.byte() % 7);
    o.reservoir_bytes = uint64_t{1} << (18 + r_.byte() % 7);
    o.max_sessions = r_.byte() % 8;
    o.log = &Callbacks::on_log;
    o.log_level = r_.byte() % 6;
    static constexpr const char* kPaths[] = {"auto", "plain", "auto", "no such path", ""};
    o.cpu_path = kPaths[r_.byte() % std::size(kPaths)];
    o.backend = "cpu";
    odd_size(&o);
    orrery_runtime* h = poison<orrery_runtime>();
    made(orrery_runtime_create(&o, &h, e_.get()), h);
    orrery_runtime_free(slot);
    slot = h;
  }
  void free_runtime() { drop(&t_.runtimes[few()], orrery_runtime_free); }
  void runtime_info() {
    orrery_runtime_info info = options(&orrery_runtime_info_init);
    const auto* runtime = t_.runtimes[few()];
    if (e_.check(orrery_runtime_get_info(runtime, &info, e_.get())) == ORRERY_OK)
      require(info.arena_used_bytes <= info.arena_bytes, "no more of the arena is used than there is");
    else require(runtime == nullptr, "a runtime tells of itself");
  }

  void open_model() {
    orrery_runtime* runtime = t_.runtimes[few()];
    orrery_model*& slot = t_.models[few()];
    orrery_model_options o = model_options();
    const std::string& path = files().paths[r_.byte() % std::size(files().paths)];
    o.load = r_.byte() % 3;
    Callbacks callbacks;
    callbacks.calls_left = r_.byte() & 7 ? UINT32_MAX : r_.byte() & 3;
    o.progress = &Callbacks::on_progress;
    o.progress_user = &callbacks;
    odd_size(&o);
    orrery_model* h = poison<orrery_model>();
    made(orrery_model_open(runtime, path_source(path), &o, &h, e_.get()), h);
    orrery_model_free(slot);
    slot = h;
  }
  void free_model() { drop(&t_.models[few()], orrery_model_free); }
  void model_info() {
    const orrery_model* model = t_.models[few()];
    orrery_model_info info = options(&orrery_model_info_init);
    require((e_.check(orrery_model_get_info(model, &info, e_.get())) == ORRERY_OK) == (model != nullptr), "a model tells of itself");
    orrery_vocab*& slot = t_.vocabs[few()];
    orrery_vocab* vocab = orrery_model_vocab(model);
    require((vocab != nullptr) == (model != nullptr), "a model has a vocabulary");
    orrery_vocab_free(slot);
    slot = vocab;
  }
  void vocabulary() {
    orrery_vocab*& slot = t_.vocabs[few()];
    switch (r_.byte() % 4) {
      case 0: {
        orrery_vocab* h = poison<orrery_vocab>();
        made(orrery_vocab_open(path_source(files().paths[r_.byte() % 5]), &h, e_.get()), h);
        orrery_vocab_free(slot);
        slot = h;
        return;
      }
      case 1: return drop(&slot, orrery_vocab_free);
      case 2: {
        const uint32_t flags = r_.byte() % 5;
        const std::string text = r_.text();
        std::vector<int32_t> ids;
        const orrery_status s =
            sized_out<int32_t>([&](int32_t* out, size_t m, size_t* n,
                                   orrery_error* e) { return orrery_tokenize(slot, text.data(), text.size(), flags, out, m, n, e); },
                               &ids);
        require(s == ORRERY_OK || slot == nullptr || flags > 3, "any text can be tokenized");
        for (const int32_t id : ids) orrery_token_flags(slot, id);
        return;
      }
      default: {
        std::vector<int32_t> ids = tokens();
        std::vector<char> text;
        sized_out<char>([&](char* out, size_t m, size_t* n,
                            orrery_error* e) { return orrery_detokenize(slot, ids.data(), ids.size(), 1, out, m, n, e); },
                        &text);
        orrery_vocab_info info = options(&orrery_vocab_info_init);
        e_.check(orrery_vocab_get_info(slot, &info, e_.get()));
      }
    }
  }

  void open_session() {
    orrery_model* model = t_.models[few()];
    const size_t slot = many();
    orrery_session_options o = session_options();
    o.n_context = r_.byte() % kMostContext + 1;
    const uint8_t policy = r_.byte();
    if (policy % 3 != 0) o.policy = files().policies[policy % files().policies.size()].c_str();
    o.kv_budget_share = static_cast<float>(r_.byte() % 11) / 10.0f;
    if (o.kv_budget_share == 0.0f) o.kv_budget_share = 1.0f;
    o.kv_type = r_.byte() % 6;
    o.device_kv_type = r_.byte() % 7;
    o.overflow = r_.byte() % 3;
    o.chunk_tokens = r_.byte() % 40;
    odd_size(&o);
    orrery_session* h = poison<orrery_session>();
    made(orrery_session_open(model, &o, &h, e_.get()), h);
    put_session(slot, h);
  }
  void free_session() { put_session(many(), nullptr); }

  void add_message() {
    const std::string role = r_.byte() & 1 ? "user" : r_.text(), content = r_.text().substr(0, kMostText);
    change([&](orrery_session* s) { return orrery_session_add_message(s, role.c_str(), content.c_str(), e_.get()); });
  }
  void add_json() {
    const std::string json = r_.text();
    change([&](orrery_session* s) { return orrery_session_add_message_json(s, json.c_str(), e_.get()); });
  }
  void messages() {
    const orrery_session* s = t_.sessions[many()];
    const size_t i = r_.byte() % 6, n = orrery_session_n_messages(s);
    std::vector<char> json;
    const orrery_status status = sized_out<char>(
        [&](char* out, size_t m, size_t* bytes, orrery_error* e) { return orrery_session_message(s, i, out, m, bytes, e); }, &json);
    require((status == ORRERY_OK) == (i < n), "messages that are there can be read");
    require(whole_utf8({json.data(), json.size()}), "a message is UTF-8");
  }
  void set_template() {
    orrery_template_options o = options(&orrery_template_options_init);
    static constexpr const char* kTemplates[] = {
        nullptr,  "{{ messages | length }}", "{% for m in messages %}{{ m.content }}{% endfor %}", "{{ 1 / 0 }}",
        "{% bad", "{{ tools }}{{ x }}"};
    o.template_source = kTemplates[r_.byte() % std::size(kTemplates)];
    const std::string tools = r_.text(), variables = r_.text();
    if (!tools.empty()) o.tools_json = tools.c_str();
    if (!variables.empty()) o.variables_json = variables.c_str();
    o.add_generation_prompt = r_.byte() & 1;
    change([&](orrery_session* s) { return orrery_session_set_template(s, &o, e_.get()); });
  }
  void rewind_messages() {
    const size_t n = r_.byte() % 6;
    change([&](orrery_session* s) { return orrery_session_rewind_messages(s, n, e_.get()); });
  }
  void session_tokens() {
    const orrery_session* s = t_.sessions[many()];
    std::vector<int32_t> ids;
    sized_out<int32_t>([&](int32_t* out, size_t m, size_t* n, orrery_error* e) { return orrery_session_tokens(s, out, m, n, e); }, &ids);
    require(ids.size() == orrery_session_n_tokens(s), "a session's tokens are as many as it says");
  }
  void rewind() {
    const size_t n = r_.byte();
    change([&](orrery_session* s) { return orrery_session_rewind(s, n, e_.get()); });
  }
  void fork() {
    const size_t to = many();
    orrery_session* h = poison<orrery_session>();
    orrery_session* of = nullptr;
    const orrery_status status = change([&](orrery_session* s) {
      of = s;
      return orrery_session_fork(s, &h, e_.get());
    });
    made(status, h);
    if (h) require(Snapshot(h) == Snapshot(of), "a fork has its session's tokens and messages");
    put_session(to, h);
  }
  void save() {
    auto& buffer = t_.saved[few()];
    orrery_session* s = t_.sessions[many()];
    if (s == nullptr) return;
    std::vector<unsigned char> bytes;
    const bool busy = busy_now(s);
    const orrery_status status = sized_out<unsigned char>(
        [&](unsigned char* out, size_t m, size_t* n, orrery_error* e) { return orrery_session_save_buffer(s, out, m, n, e); }, &bytes);
    require(status == ORRERY_OK || (busy && status == ORRERY_BUSY) || status == ORRERY_OUT_OF_DEVICE_MEMORY,
            "a session is saved, unless it is busy");
    if (status == ORRERY_OK) buffer = std::move(bytes);
  }
  void load() {
    std::vector<unsigned char> bytes = t_.saved[few()];
    const uint8_t how = r_.byte();
    const auto at = r_.number<uint16_t>();
    const uint8_t flip = r_.byte();
    if (!bytes.empty() && (how & 1)) bytes[at % bytes.size()] = static_cast<unsigned char>(bytes[at % bytes.size()] ^ flip);
    if (how & 2) bytes.resize(std::min<size_t>(bytes.size(), at));
    const orrery_status status = change(
        [&](orrery_session* s) { return orrery_session_load_buffer(s, bytes.empty() ? nullptr : bytes.data(), bytes.size(), e_.get()); });
    require(status != ORRERY_OK || bytes == t_.saved[0] || bytes == t_.saved[1], "what was damaged does not load");
  }
  void save_file() {
    const std::string path = files().dir.file(r_.byte() & 1 ? "saved" : "no/such/folder");
    change([&](orrery_session* s) { return orrery_session_save(s, path.c_str(), e_.get()); });
  }
  void load_file() {
    const std::string path = files().dir.file(r_.byte() & 1 ? "saved" : "a.gguf");
    change([&](orrery_session* s) { return orrery_session_load(s, path.c_str(), e_.get()); });
  }
  void evaluate() {
    const std::vector<int32_t> ids = tokens();
    // The tiny models' vocabulary, as wide as the larger of the two.
    std::vector<float> logits(r_.byte() & 1 ? ids.size() * 400 : 0);
    change([&](orrery_session* s) {
      return orrery_session_evaluate(s, ids.data(), ids.size(), logits.empty() ? nullptr : logits.data(), e_.get());
    });
  }
  void read_results() {
    const orrery_session* s = t_.sessions[many()];
    std::vector<float> out(400);
    e_.check(orrery_session_embedding(s, out.data(), r_.byte() & 1 ? 32 : 31, e_.get()));
    e_.check(orrery_session_logits(s, out.data(), 300 + r_.byte() % 100, e_.get()));
    orrery_stats stats = options(&orrery_stats_init);
    if (e_.check(orrery_session_stats(s, &stats, e_.get())) == ORRERY_OK)
      require(stats.n_tokens <= stats.n_context && stats.n_tokens == orrery_session_n_tokens(s), "tokens fit their context");
  }

  void generate(bool from_tokens) {
    const size_t slot = many();
    Callbacks& callbacks = t_.callbacks[slot];
    free_generation(slot);
    callbacks = Callbacks();
    orrery_generate_options o = generate_options(1 + r_.byte() % 4);
    const uint8_t flags = r_.byte();
    o.ignore_end = flags & 1;
    if (flags & 2) o.temperature = static_cast<float>(r_.byte()) / 64.0f;
    if (flags & 4) o.top_k = r_.byte();
    if (flags & 8) o.n_logprobs = r_.byte() % 24;
    const std::string stop = flags & 16 ? r_.text() : "";
    const char* stops[] = {stop.c_str()};
    if (flags & 16) o.stop = stops, o.n_stop = 1;
    const orrery_logit_bias bias = {static_cast<int32_t>(r_.byte()) - 8, flags & 1 ? -HUGE_VALF : 5.0f};
    if (flags & 32) o.logit_bias = &bias, o.n_logit_bias = 1;
    if (flags & 64) {
      o.logits_hook = &Callbacks::on_logits;
      o.logits_user = &callbacks;
      callbacks.calls_left = r_.byte() % 8;
      callbacks.spoil_logits = callbacks.calls_left == 5;
    }
    if (flags & 128) o.repetition_penalty = static_cast<float>(r_.byte()) / 32.0f, o.frequency_penalty = 0.5f;
    odd_size(&o);
    const std::vector<int32_t> ids = from_tokens ? tokens() : std::vector<int32_t>();
    orrery_generation* h = poison<orrery_generation>();
    size_t of = 0;
    const orrery_status status = change(
        [&](orrery_session* s) {
          return from_tokens ? orrery_generate_tokens(s, ids.data(), ids.size(), &o, &h, e_.get()) : orrery_generate(s, &o, &h, e_.get());
        },
        &of);
    made(status, h);
    if (h == nullptr) return;
    t_.generations[slot] = {h, of, false, t_.lives[of]};
    // Callbacks look at the session they are called for.
    if (flags & 64 && r_.byte() & 1) callbacks.look_at = t_.sessions[of];
    if (r_.byte() % 8 == 1) callbacks.cancel = h;
  }
  void next() { pull(many(), 1); }
  void drain() { pull(many(), 40); }
  void run() {
    const size_t slot = many();
    GenerationState& g = t_.generations[slot];
    Callbacks callbacks;
    callbacks.calls_left = r_.byte() % 16;
    if (alive(g) && (r_.byte() & 1)) callbacks.cancel = g.handle;
    const orrery_status s = e_.check(orrery_run(g.handle, &Callbacks::on_event, &callbacks, e_.get()));
    if (g.handle) {
      g.finished = true;
      check_working(s);
    }
  }
  void cancel() { orrery_cancel(t_.generations[many()].handle); }
  void free_one_generation() { free_generation(many()); }

  void calibrate() {
    orrery_model* model = t_.models[few()];
    orrery_calibrate_options o = options(&orrery_calibrate_options_init);
    o.n_steps = r_.byte() % 3;
    o.top_k = r_.byte() % 12;
    Callbacks callbacks;
    callbacks.calls_left = r_.byte() & 3 ? UINT32_MAX : r_.byte() % 16;
    o.progress = &Callbacks::on_progress;
    o.progress_user = &callbacks;
    const std::vector<int32_t> ids(8 + r_.byte() % 8, 70);
    const size_t n = ids.size();
    orrery_calibration* h = poison<orrery_calibration>();
    made(orrery_calibrate(model, ids.data(), &n, 1, &o, &h, e_.get()), h);
    orrery_calibration_free(t_.calibration);
    t_.calibration = h;
    std::vector<char> profile, steps, again;
    const auto write = [&](char* out, size_t m, size_t* bytes, orrery_error* e) { return orrery_calibration_profile(h, out, m, bytes, e); };
    if (sized_out<char>(write, &profile) != ORRERY_OK) return;
    profile.push_back('\0');
    require(sized_out<char>([&](char* out, size_t m, size_t* bytes,
                                orrery_error* e) { return orrery_head_profile_import(profile.data(), out, m, bytes, e); },
                            &again) == ORRERY_OK,
            "a calibration's profile reads back");
    sized_out<char>([&](char* out, size_t m, size_t* bytes, orrery_error* e) { return orrery_calibration_steps(h, out, m, bytes, e); },
                    &steps);
  }
  void plan() {
    const size_t which = r_.byte();
    const std::string& path = files().paths[which % std::size(files().paths)];
    orrery_session_options o = session_options();
    o.n_context = r_.number<uint32_t>();
    o.chunk_tokens = r_.number<uint32_t>();
    o.kv_budget_bytes = r_.number<uint32_t>();
    orrery_runtime_options runtime = runtime_options();
    runtime.n_threads = 1;
    orrery_plan_result result = options(&orrery_plan_result_init);
    e_.check(orrery_plan(path_source(path), &runtime, nullptr, &o, &result, e_.get()));
    std::vector<char> json(size_t{1} << 16);
    size_t n = 0;
    if (which < 16) e_.check(orrery_inspect(path_source(path), json.data(), json.size(), &n, e_.get()));
    else if (which % 16 == 0)
      sized_out<char>(
          [&](char* out, size_t m, size_t* bytes, orrery_error* e) { return orrery_inspect(path_source(path), out, m, bytes, e); }, &json);
    require(orrery_status_name(r_.byte()) != nullptr && orrery_version() != nullptr && orrery_build_info() != nullptr,
            "names are never NULL");
  }

  // Every session that is left works, whatever was done to it, its model and its runtime.
  void everything_still_works() {
    for (size_t g = 0; g < CallTable::kMany; ++g) free_generation(g);
    for (orrery_session* s : t_.sessions) {
      if (s == nullptr) continue;
      orrery_stats stats = options(&orrery_stats_init);
      require(e_.check(orrery_session_stats(s, &stats, e_.get())) == ORRERY_OK, "a session tells of itself");
      require(e_.check(orrery_session_add_message(s, "user", "x", e_.get())) == ORRERY_OK, "a session takes a message");
      // A parked session has no room in the arena, and may find none.
      const auto works = [&](orrery_status status) {
        require(status == ORRERY_OK || (status == ORRERY_OUT_OF_DEVICE_MEMORY && stats.parked), "a session works", (*e_).message);
      };
      works(e_.check(orrery_session_rewind(s, 0, e_.get())));
      const int32_t token = 70;
      if (orrery_session_n_tokens(s) == 0) works(e_.check(orrery_session_evaluate(s, &token, 1, nullptr, e_.get())));
    }
  }

 private:
  size_t few() { return r_.byte() % CallTable::kFew; }
  size_t many() { return r_.byte() % CallTable::kMany; }
  std::vector<int32_t> tokens() {
    std::vector<int32_t> out(r_.byte() % 48);
    for (int32_t& id : out) id = static_cast<int32_t>(r_.byte()) + (out.size() == 7 ? 1000 : 3) - (out.size() == 8 ? 9 : 0);
    out.resize(std::min(out.size(), kMostTokens));
    return out;
  }
  template <class T>
  static T* poison() {
    return reinterpret_cast<T*>(uintptr_t{0x10});
  }
  // Now and then a struct_size that no caller should pass.
  template <class T>
  void odd_size(T* o) {
    if (r_.byte() == 0xEE) o->struct_size = static_cast<uint32_t>(r_.byte() * 4u % (sizeof *o + 1));
  }
  template <class T>
  void made(orrery_status status,
            T* const& handle) {  // by reference: the call that sets it is the other argument
    e_.check(status);
    require((status == ORRERY_OK) == (handle != nullptr), "a handle, or NULL", (*e_).message);
  }
  template <class T, class F>
  static void drop(T** slot, F free) {
    free(*slot);
    *slot = nullptr;
  }
  void put_session(size_t slot, orrery_session* s) {
    for (Callbacks& c : t_.callbacks)
      if (c.look_at == t_.sessions[slot]) c.look_at = nullptr;
    orrery_session_free(t_.sessions[slot]);
    t_.sessions[slot] = s;
    ++t_.lives[slot];
  }
  bool busy_now(const orrery_session* s) const {
    for (size_t i = 0; i < CallTable::kMany; ++i)
      if (t_.sessions[i] == s && t_.under_way(i)) return true;
    return false;
  }
  // A call that changes a session: BUSY exactly while a generation is under way, and nothing changes if it
  // fails.
  template <class F>
  orrery_status change(F call, size_t* which = nullptr) {
    const size_t slot = many();
    if (which) *which = slot;
    orrery_session* s = t_.sessions[slot];
    const Snapshot before(s);
    const bool busy = t_.under_way(slot);
    const orrery_status status = e_.check(call(s));
    require(status != ORRERY_BUSY || busy, "busy means a generation under way");
    require(status != ORRERY_OK || (s != nullptr && !busy), "a session under way is not changed");
    require(status != ORRERY_DEVICE_LOST, "no device is lost", (*e_).message);
    if (status != ORRERY_OK) require(Snapshot(s) == before, "a call that fails changes nothing", (*e_).message);
    return status;
  }
  static bool alive(const GenerationState& g) { return g.handle && !g.finished; }
  void check_working(orrery_status s) {
    require(s == ORRERY_OK || s == ORRERY_OUT_OF_DEVICE_MEMORY || s == ORRERY_OUT_OF_HOST_MEMORY || s == ORRERY_BAD_MODEL ||
                s == ORRERY_CANCELLED || s == ORRERY_INVALID_ARGUMENT || s == ORRERY_CONTEXT_FULL || s == ORRERY_UNSUPPORTED_TEMPLATE,
            "an answer goes on", (*e_).message);
  }
  void pull(size_t slot, int times) {
    GenerationState& g = t_.generations[slot];
    if (g.handle == nullptr) {
      orrery_event none = options(&orrery_event_init);
      require(e_.check(orrery_next(nullptr, &none, e_.get())) == ORRERY_INVALID_ARGUMENT, "NULL is no generation");
      return;
    }
    for (; times > 0; --times) {
      orrery_event e = options(&orrery_event_init);
      const bool was_finished = g.finished;
      const orrery_status s = e_.check(orrery_next(g.handle, &e, e_.get()));
      check_working(s);
      if (s != ORRERY_OK) {
        g.finished = true;
        return;
      }
      check_event(e);
      require(!was_finished || e.type == ORRERY_EVENT_DONE, "an answer that has ended stays so");
      if (e.type == ORRERY_EVENT_DONE) {
        g.finished = true;
        return;
      }
    }
  }
  void free_generation(size_t slot) {
    orrery_generation_free(t_.generations[slot].handle);
    t_.generations[slot] = {};
    t_.callbacks[slot] = {};
  }

  CallTable& t_;
  Reader& r_;
  CheckedError e_;
};

using Call = void (*)(Program&);
constexpr Call kCalls[] = {
    [](Program& p) { p.create_runtime(); }, [](Program& p) { p.free_runtime(); },
    [](Program& p) { p.runtime_info(); },   [](Program& p) { p.open_model(); },
    [](Program& p) { p.free_model(); },     [](Program& p) { p.model_info(); },
    [](Program& p) { p.vocabulary(); },     [](Program& p) { p.open_session(); },
    [](Program& p) { p.free_session(); },   [](Program& p) { p.add_message(); },
    [](Program& p) { p.add_json(); },       [](Program& p) { p.messages(); },
    [](Program& p) { p.set_template(); },   [](Program& p) { p.rewind_messages(); },
    [](Program& p) { p.session_tokens(); }, [](Program& p) { p.rewind(); },
    [](Program& p) { p.fork(); },           [](Program& p) { p.save(); },
    [](Program& p) { p.load(); },           [](Program& p) { p.save_file(); },
    [](Program& p) { p.load_file(); },      [](Program& p) { p.evaluate(); },
    [](Program& p) { p.read_results(); },   [](Program& p) { p.generate(false); },
    [](Program& p) { p.generate(true); },   [](Program& p) { p.next(); },
    [](Program& p) { p.drain(); },          [](Program& p) { p.run(); },
    [](Program& p) { p.cancel(); },         [](Program& p) { p.free_one_generation(); },
    [](Program& p) { p.calibrate(); },      [](Program& p) { p.plan(); },
};
constexpr uint8_t kOperations = std::size(kCalls);

void begin(CallTable* t, bool small) {
  orrery_runtime_options o = runtime_options();
  o.n_threads = 1;
  o.backend = "cpu";
  o.device_budget_bytes = uint64_t{small ? 1u : 4u} << 20;
  o.reservoir_bytes = uint64_t{2} << 20;
  CheckedError e;
  require(e.check(orrery_runtime_create(&o, &t->runtimes[0], e.get())) == ORRERY_OK, "a runtime opens");
  require(e.check(orrery_model_open(t->runtimes[0], path_source(files().paths[0]), nullptr, &t->models[0], e.get())) == ORRERY_OK,
          "a model opens", (*e).message);
  orrery_session_options s = session_options();
  s.n_context = 96;
  e.check(orrery_session_open(t->models[0], &s, &t->sessions[0], e.get()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Framed input = Framed::parse(data, size, kHead);
  CallTable table;
  if (input.head[0] & 1) begin(&table, (input.head[0] & 2) != 0);
  for (size_t i = 0; i < std::min(input.frames.size(), kMostFrames); ++i) {
    Reader r(input.frames[i].arguments.data(), input.frames[i].arguments.size());
    Program program(&table, &r);
    kCalls[input.frames[i].operation % kOperations](program);
  }
  Reader none(nullptr, 0);
  Program(&table, &none).everything_still_works();
  return 0;
}

ORRERY_FRAMED_MUTATOR(kHead, kOperations)
