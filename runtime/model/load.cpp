// Finds each tensor by its name in the file, checks its shape, and places it. One walk over the model's tensors
// (visit) serves both the plan, which counts bytes, and the loader, which places the tensors.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "runtime/base/checked.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/read_ahead.h"
#include "runtime/model/model.h"

namespace orrery::model {

namespace {

constexpr uint64_t kWeightAlignment = 64;

std::string shape_text(int64_t rows, int64_t cols) {
  return rows == 1 ? format("(%lld)", static_cast<long long>(cols))
                   : format("(%lld, %lld)", static_cast<long long>(rows), static_cast<long long>(cols));
}

// Finds a tensor by name and checks its exact shape. Null if the tensor is absent and not required.
Result<const gguf::Tensor*> find(const gguf::File& file, const std::string& name, int64_t rows, int64_t cols,
                                 bool required) {
  const gguf::Tensor* t = file.find_tensor(name);
  if (t == nullptr) {
    if (!required) return t;
    return error(Code::bad_model, "%s: tensor '%s' %s is missing", file.path().c_str(), name.c_str(),
                 shape_text(rows, cols).c_str());
  }
  const bool as_expected = t->dims[0] == static_cast<uint64_t>(cols) && t->dims[1] == static_cast<uint64_t>(rows) &&
                           t->dims[2] == 1 && t->dims[3] == 1;
  if (!as_expected) {
    Status s = error(Code::bad_model, "%s: tensor '%s' has shape %s, expected %s", file.path().c_str(), name.c_str(),
                     shape_text(static_cast<int64_t>(t->dims[1]), static_cast<int64_t>(t->dims[0])).c_str(),
                     shape_text(rows, cols).c_str());
    s.detail().offset = t->offset;
    return s;
  }
  return t;
}

// Whether the backend can use a vector at its place in the file: float32, aligned, in memory that the backend reads.
// A backend that repacks matrices copies vectors too, because a vector in the file would keep the pages around it in
// memory.
bool in_place(const gguf::Tensor& t, const Device& device) {
  return t.type == TensorType::f32 && t.offset % alignof(float) == 0 && device.info().unified_memory;
}

// The callbacks of visit(), one call for each tensor of a model.
class Visitor {
 public:
  virtual ~Visitor() = default;
  virtual Status matrix(const gguf::Tensor& t, Weight* out) = 0;
  virtual Status vector(const gguf::Tensor& t, Ptr<const float>* out) = 0;
  // Divisors of the rotary frequencies; they stay on the host.
  virtual Status factors(const gguf::Tensor&, std::vector<float>*) { return ok_status(); }
};

// Tensors that change nothing, by the end of their names. Some exporters keep tables of rotary frequencies, although
// the frequencies follow from the base.
constexpr std::string_view kHarmlessTensors[] = {".attn_rot_embd", ".attn_rot_embd.weight", ".rotary_emb.inv_freq"};

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Looks tensors up and records them. Afterwards it knows the tensors that nothing has read.
class Walk {
 public:
  Walk(const gguf::File& file, Visitor* visitor) : file_(file), visitor_(visitor), used_(file.tensors().size()) {}

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  Status matrix(const std::string& name, int64_t rows, int64_t cols, bool required, Weight* out) {
    ORRERY_ASSIGN(const gguf::Tensor* t, take(name, rows, cols, required));
    return t ? visitor_->matrix(*t, out) : ok_status();
  }
  Status vector(const std::string& name, int64_t n, bool required, Ptr<const float>* out) {
    ORRERY_ASSIGN(const gguf::Tensor* t, take(name, 1, n, required));
    return t ? visitor_->vector(*t, out) : ok_status();
  }
  Status factors(const std::string& name, int64_t n, bool required, std::vector<float>* out) {
    ORRERY_ASSIGN(const gguf::Tensor* t, take(name, 1, n, required));
    return t ? visitor_->factors(*t, out) : ok_status();
  }

  // A tensor that nothing has read belongs to a model that we do not support. Ignoring the tensor would give wrong
  // answers.
  Status refuse_the_rest(const Hyperparameters& h) const {
    for (size_t i = 0; i < used_.size(); ++i) {
      const gguf::Tensor& t = file_.tensors()[i];
      bool harmless = used_[i];
      for (const std::string_view end : kHarmlessTensors) harmless = harmless || ends_with(t.name, end);
      if (harmless) continue;
      Status s = error(Code::unsupported_architecture,
                       "%s: tensor '%s' is not a part of architecture '%s' with %d layers as it is run here",
                       file_.path().c_str(), gguf::printable(t.name).c_str(), h.architecture->name, h.n_layers);
      s.detail().offset = t.offset;
      return s;
    }
    return ok_status();
  }

 private:
  Result<const gguf::Tensor*> take(const std::string& name, int64_t rows, int64_t cols, bool required) {
    ORRERY_ASSIGN(const gguf::Tensor* t, find(file_, name, rows, cols, required));
    if (t) used_[static_cast<size_t>(t - file_.tensors().data())] = true;
    return t;
  }

  const gguf::File& file_;
  Visitor* visitor_;
  std::vector<bool> used_;   // by index in the file's tensors
};

Status visit_layer(Walk* walk, const Hyperparameters& h, size_t i, Layer* l) {
  const std::string p = "blk." + std::to_string(i) + ".";
  const Architecture& a = *h.architecture;
  const int64_t n = h.n_embd, q = h.q_dim(), kv = h.kv_dim(), ff = h.n_ff[i];

  ORRERY_TRY(walk->vector(p + "attn_norm.weight", n, true, &l->attn_norm));
  if (walk->has(p + "attn_qkv.weight")) {
    ORRERY_TRY(walk->matrix(p + "attn_qkv.weight", q + 2 * kv, n, true, &l->qkv));
    ORRERY_TRY(walk->vector(p + "attn_qkv.bias", q + 2 * kv, false, &l->qkv_bias));
  } else {
    ORRERY_TRY(walk->matrix(p + "attn_q.weight", q, n, true, &l->q));
    ORRERY_TRY(walk->matrix(p + "attn_k.weight", kv, n, true, &l->k));
    ORRERY_TRY(walk->matrix(p + "attn_v.weight", kv, n, true, &l->v));
    ORRERY_TRY(walk->vector(p + "attn_q.bias", q, false, &l->q_bias));
    ORRERY_TRY(walk->vector(p + "attn_k.bias", kv, false, &l->k_bias));
    ORRERY_TRY(walk->vector(p + "attn_v.bias", kv, false, &l->v_bias));
  }
  if (a.qk_norm) {
    ORRERY_TRY(walk->vector(p + "attn_q_norm.weight", h.head_dim, true, &l->q_norm));
    ORRERY_TRY(walk->vector(p + "attn_k_norm.weight", h.head_dim, true, &l->k_norm));
  }
  ORRERY_TRY(walk->matrix(p + "attn_output.weight", n, q, true, &l->attn_out));
  ORRERY_TRY(walk->vector(p + "attn_output.bias", n, false, &l->attn_out_bias));
  if (a.post_norms) {
    ORRERY_TRY(walk->vector(p + "post_attention_norm.weight", n, true, &l->post_attn_norm));
    ORRERY_TRY(walk->vector(p + "post_ffw_norm.weight", n, true, &l->post_ffn_norm));
  }
  ORRERY_TRY(walk->vector(p + "ffn_norm.weight", n, true, &l->ffn_norm));
  if (a.fused_gate_up) {
    ORRERY_TRY(walk->matrix(p + "ffn_up.weight", 2 * ff, n, true, &l->gate_up));
  } else {
    ORRERY_TRY(walk->matrix(p + "ffn_gate.weight", ff, n, true, &l->gate));
    ORRERY_TRY(walk->matrix(p + "ffn_up.weight", ff, n, true, &l->up));
  }
  return walk->matrix(p + "ffn_down.weight", n, ff, true, &l->down);
}

// Rotary factors that are tensors. Long and short factors must come together.
Status visit_rope(Walk* walk, const Hyperparameters& h, RopeFactors* factors) {
  const int64_t n = h.n_rot / 2;
  ORRERY_TRY(walk->factors("rope_freqs.weight", n, false, &factors->llama3));
  if (!h.architecture->longrope) return ok_status();
  const bool any = walk->has("rope_factors_long.weight") || walk->has("rope_factors_short.weight");
  ORRERY_TRY(walk->factors("rope_factors_long.weight", n, any, &factors->long_context));
  return walk->factors("rope_factors_short.weight", n, any, &factors->short_context);
}

// Reads every tensor of the forward pass into `m` and `factors`. Refuses a file with other tensors.
Status visit(const gguf::File& file, const Hyperparameters& h, Visitor* visitor, Weights* m, RopeFactors* factors) {
  Walk walk(file, visitor);
  ORRERY_TRY(walk.matrix("token_embd.weight", h.n_vocab, h.n_embd, true, &m->embedding));
  ORRERY_TRY(visit_rope(&walk, h, factors));
  m->layers.resize(static_cast<size_t>(h.n_layers));
  for (size_t i = 0; i < m->layers.size(); ++i) ORRERY_TRY(visit_layer(&walk, h, i, &m->layers[i]));
  ORRERY_TRY(walk.vector("output_norm.weight", h.n_embd, true, &m->output_norm));
  ORRERY_TRY(walk.matrix("output.weight", h.n_vocab, h.n_embd, false, &m->output));
  // This check runs before the tokenizer is built, so a larger vocabulary costs nothing.
  const gguf::Value* tokens = file.find("tokenizer.ggml.tokens");
  if (tokens != nullptr && tokens->size() > static_cast<uint64_t>(h.n_vocab))
    return error(Code::bad_model, "%s: the tokenizer has %llu tokens, tensor 'token_embd.weight' only %d rows",
                 file.path().c_str(), static_cast<unsigned long long>(tokens->size()), h.n_vocab);
  return walk.refuse_the_rest(h);
}

// Checks names and shapes and places nothing.
class Checker final : public Visitor {
 public:
  Status matrix(const gguf::Tensor&, Weight*) override { return ok_status(); }
  Status vector(const gguf::Tensor&, Ptr<const float>*) override { return ok_status(); }
};

// Adds up the bytes that the arena must hold.
class Counter final : public Visitor {
 public:
  Counter(const gguf::File& file, const Device& device) : file_(file), device_(device) {}
  Status matrix(const gguf::Tensor& t, Weight* out) override {
    out->data.address = 1;   // present
    matrices_ += align_up(repacked_bytes(file_, t, device_), kWeightAlignment);
    return ok_status();
  }
  Status vector(const gguf::Tensor& t, Ptr<const float>*) override {
    const uint64_t bytes = align_up(t.n_elements * sizeof(float), kWeightAlignment);
    vectors_ += bytes;
    if (!in_place(t, device_)) converted_ += bytes;
    return ok_status();
  }
  // Depends on the arena's size, not on its free bytes, so the same file is always placed in the same way.
  Placement placement(uint64_t arena_bytes) const {
    const bool unified = device_.info().unified_memory;
    if (unified && (matrices_ == 0 || matrices_ > arena_bytes / 2)) return {converted_, false};
    return {vectors_ + matrices_, true};
  }

 private:
  const gguf::File& file_;
  const Device& device_;
  uint64_t matrices_ = 0;                  // repacked
  uint64_t vectors_ = 0, converted_ = 0;   // all vectors; vectors that must be converted
};

// Finds the place of each tensor, in the arena's region or in the file. place() then fills the places, in the order of
// the file, so that the system reads ahead. It counts bytes for the progress reports.
class Placer final : public Visitor {
 public:
  Placer(Turns* turns, Model* model, bool repacks, uint64_t total_bytes, const LoadOptions& options)
      : turns_(*turns),
        model_(*model),
        options_(options),
        repacks_(repacks),
        next_(model->region.data()),
        total_(total_bytes) {}

  Status matrix(const gguf::Tensor& t, Weight* out) override {
    const uint64_t bytes = repacks_ ? repacked_bytes(model_.file, t, turns_.device()) : 0;
    jobs_.push_back({&t, out, nullptr, bytes ? take(bytes) : Ptr<std::byte>{}});
    return ok_status();
  }
  Status vector(const gguf::Tensor& t, Ptr<const float>* out) override {
    const bool stays = !repacks_ && in_place(t, turns_.device());
    jobs_.push_back({&t, nullptr, out, stays ? Ptr<std::byte>{} : take(t.n_elements * sizeof(float))});
    return ok_status();
  }
  Status factors(const gguf::Tensor& t, std::vector<float>* out) override {
    out->resize(t.n_elements);
    gguf::dequantize_row(t.type, t.data, out->data(), t.n_elements);
    for (size_t i = 0; i < out->size(); ++i)   // zero, negative and infinite divisors are errors
      if (!(std::isfinite((*out)[i]) && (*out)[i] > 0.0f))
        return error(Code::bad_model, "%s: tensor '%s' value %zu is %g, expected a positive number",
                     model_.file.path().c_str(), gguf::printable(t.name).c_str(), i, static_cast<double>((*out)[i]));
    return ok_status();
  }
  Status place() {
    std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) {
      return std::pair(a.tensor->part, a.tensor->offset) < std::pair(b.tensor->part, b.tensor->offset);
    });
    uint64_t copied_bytes = 0;
    for (const Job& job : jobs_)
      if (job.at) copied_.push_back(job.tensor), copied_bytes += job.tensor->bytes;
    std::unique_ptr<Loading> loading;
    if (copied_bytes > 0) {
      ORRERY_ASSIGN(const Turn turn, take_turn());
      loading = turn.backend().begin_loading(copied_bytes, options_.n_threads, options_.priority);
    }
    gguf::ReadAhead ahead(model_.file, copied_);
    size_t n_copied = 0;
    for (const Job& job : jobs_) {
      ORRERY_TRY(account(*job.tensor));
      if (job.at) ahead.begin(n_copied++);
      ORRERY_TRY(job.matrix ? place_matrix(job) : place_vector(job));
    }
    return ok_status();
  }
  // Tensors that have been copied to the arena.
  const std::vector<const gguf::Tensor*>& copied() const { return copied_; }
  TensorType main_type() const {
    TensorType most = TensorType::f32;
    uint64_t elements = 0;
    for (const auto& [type, n] : elements_by_type_)
      if (n > elements) elements = n, most = type;
    return most;
  }

  // Takes a turn for one tensor. Other sessions may hold the backend for long; the loader calls `progress` while it
  // waits, so the application can cancel.
  Result<Turn> take_turn() {
    if (!options_.progress) return turns_.take();
    const auto asked = [this] { return cancelled(); };
    auto turn = turns_.take(Cancel::when(&asked));
    if (!turn.ok()) return cancellation();
    return turn;
  }

 private:
  // One of both is filled. at: null if the tensor is used where the file lies.
  struct Job {
    const gguf::Tensor* tensor;
    Weight* matrix;
    Ptr<const float>* vector;
    Ptr<std::byte> at;
  };

  Status place_matrix(const Job& job) {
    const gguf::Tensor& t = *job.tensor;
    ORRERY_ASSIGN(const Turn turn, take_turn());
    const int64_t rows = static_cast<int64_t>(t.dims[1]), cols = static_cast<int64_t>(t.dims[0]);
    return turn.backend().place_weight(t.type, rows, cols, t.data, job.at, job.matrix);
  }
  Status place_vector(const Job& job) {
    const gguf::Tensor& t = *job.tensor;
    *job.vector = {job.at ? job.at.address : reinterpret_cast<uint64_t>(t.data)};
    if (!job.at) return ok_status();
    std::vector<float> values(t.n_elements);
    gguf::dequantize_row(t.type, t.data, values.data(), t.n_elements);
    ORRERY_ASSIGN(const Turn turn, take_turn());
    turn.backend().upload(job.at, values.data(), t.n_elements * sizeof(float));
    return turn.backend().synchronize();
  }
  bool cancelled() const { return options_.progress && !options_.progress(done_, total_); }
  Status cancellation() const { return error(Code::cancelled, "%s: loading was cancelled", model_.file.path().c_str()); }
  Ptr<std::byte> take(uint64_t bytes) {
    const Ptr<std::byte> at = next_;
    next_ = next_ + align_up(bytes, kWeightAlignment);
    return at;
  }
  Status account(const gguf::Tensor& t) {
    if (cancelled()) return cancellation();
    done_ += t.bytes;
    model_.n_parameters += t.n_elements;
    model_.weights_bytes += t.bytes;
    elements_by_type_[t.type] += t.n_elements;
    return ok_status();
  }

  Turns& turns_;
  Model& model_;
  const LoadOptions& options_;
  const bool repacks_;
  std::vector<Job> jobs_;
  std::vector<const gguf::Tensor*> copied_;
  Ptr<std::byte> next_;
  uint64_t done_ = 0, total_;
  std::map<TensorType, uint64_t> elements_by_type_;
};

}  // namespace

uint64_t repacked_bytes(const gguf::File& file, const gguf::Tensor& t, const Device& device) {
  const bool rows_alone = t.name == "token_embd.weight" && file.find_tensor("output.weight") != nullptr;
  if (rows_alone && device.info().unified_memory) return 0;
  return device.weight_bytes(t.type, static_cast<int64_t>(t.dims[1]), static_cast<int64_t>(t.dims[0]));
}

Status check_tensors(const gguf::File& file, const Hyperparameters& hyper) {
  Checker checker;
  Weights scratch;
  RopeFactors none;
  return visit(file, hyper, &checker, &scratch, &none);
}

Result<Placement> place_weights(const gguf::File& file, const Hyperparameters& hyper, const Device& device,
                                uint64_t arena_bytes) {
  if (const Status heads = device.check_heads(hyper.head_dim); !heads.ok())
    return error(heads.code(), "%s: %s", file.path().c_str(), heads.message());
  Counter counter(file, device);
  Weights scratch;
  RopeFactors none;
  ORRERY_TRY(visit(file, hyper, &counter, &scratch, &none));
  return counter.placement(arena_bytes);
}

Result<std::unique_ptr<Model>> load_model(gguf::File taken, Turns* turns, kv::Arena* arena,
                                          const LoadOptions& options) {
  auto m = std::make_unique<Model>(std::move(taken));
  const gguf::File& file = m->file;
  ORRERY_ASSIGN(m->hyper, read_hyperparameters(file, options.rope));

  ORRERY_ASSIGN(const Placement placement, place_weights(file, m->hyper, turns->device(), arena->bytes()));
  ORRERY_ASSIGN(m->region, kv::ArenaRegion::take(arena, placement.arena_bytes, "the model"));
  Placer placer(turns, m.get(), placement.repacks, file.file_bytes(), options);
  ORRERY_TRY(visit(file, m->hyper, &placer, &m->weights, &m->rope_factors));
  ORRERY_TRY(placer.place());
  if (!m->weights.output) m->weights.output = m->weights.embedding;   // tied
  {
    ORRERY_ASSIGN(const Turn turn, placer.take_turn());
    ORRERY_TRY(turn.backend().synchronize());   // reports errors of earlier uploads
  }
  if (options.progress && !options.progress(file.file_bytes(), file.file_bytes()))
    return error(Code::cancelled, "%s: loading was cancelled", file.path().c_str());
  m->main_type = placer.main_type();
  if (options.full_fingerprint)
    ORRERY_TRY(file.full_fingerprint(options.progress, m->fingerprint));
  else
    file.fingerprint(false, m->fingerprint);
  for (const gguf::Tensor* t : placer.copied()) file.release_pages(*t);   // the arena holds copies; the fingerprint has read some
  return m;
}

}  // namespace orrery::model
