// Places a model's tensors. One walk over them (visit) serves the check, the plan, which counts bytes, and the loader.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "runtime/base/checked.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/read_ahead.h"
#include "runtime/model/families/family.h"
#include "runtime/model/load/model.h"

namespace orrery::model {

namespace {

constexpr uint64_t kWeightAlignment = 64;

// Whether the backend can use a vector at its place in the file: float32, aligned, in memory that the backend reads.
// A backend that repacks matrices copies vectors too, because a vector in the file would keep the pages around it in
// memory.
bool in_place(const gguf::Tensor& t, const Device& device) {
  return t.type == TensorType::f32 && t.offset % alignof(float) == 0 && device.info().reads_host_memory;
}

// Bytes of the arena from one of n matrices in a tensor to the next, if they are repacked; 0: they are used where the file lies.
uint64_t matrix_stride(const gguf::Tensor& t, int64_t n, const Device& device) {
  const auto cols = static_cast<int64_t>(t.dims[0]), rows = static_cast<int64_t>(t.n_elements) / cols / n;
  return align_up(device.weight_bytes(t.type, rows, cols), kWeightAlignment);
}

// The same in a unit of a store (store/expert_units.h), which also has the matrices that are used as the file has them.
uint64_t unit_stride(const gguf::Tensor& t, int64_t n, const Device& device) {
  const uint64_t repacked = matrix_stride(t, n, device);
  return repacked ? repacked : align_up(t.bytes / static_cast<uint64_t>(n), kWeightAlignment);
}

// The same in a unit that the processor computes beside the device (store/host_experts.h). A device that reads host memory is the processor.
uint64_t host_unit_stride(const gguf::Tensor& t, int64_t n, const Device& device) {
  return device.info().reads_host_memory ? unit_stride(t, n, device) : align_up(t.bytes / static_cast<uint64_t>(n), kWeightAlignment);
}

// An embedding with an output matrix of its own: a step reads a row of it for each token, and no product reads it.
bool rows_alone(const gguf::File& file, const gguf::Tensor& t) {
  return t.name == "token_embd.weight" && file.find_tensor("output.weight") != nullptr;
}

bool is_experts_bias(const gguf::Tensor& t) {
  constexpr std::string_view kEnd = "_exps.bias";
  const std::string_view name = t.name;
  return name.size() > kEnd.size() && name.substr(name.size() - kEnd.size()) == kEnd;
}

Status visit_mixer(Tensors* tensors, const Description& d, const LayerShape& shape, const std::string& prefix, Layer* l) {
  const std::string norm = prefix + (d.norms_after ? "attn_output_norm" : "attn_norm");
  if (shape.mixer != Mixer::none) ORRERY_TRY(tensors->vector(norm + ".weight", d.n_embd, true, &l->attn_norm));
  if (d.layer_norms) ORRERY_TRY(tensors->vector(norm + ".bias", d.n_embd, false, &l->attn_norm_bias));
  switch (shape.mixer) {
    case Mixer::attention:
      return shape.latent ? latent_attention::find(tensors, d, shape, prefix, &l->latent)
                          : attention::find(tensors, d, shape.attention, prefix, &l->attention);
    case Mixer::delta_net: return delta_net::find(tensors, d, shape.delta_net, prefix, &l->delta_net);
    case Mixer::mamba2: return mamba2::find(tensors, d, shape.mamba2, prefix, &l->mamba2);
    case Mixer::short_conv: return short_conv::find(tensors, d, shape.short_conv, prefix, &l->short_conv);
    case Mixer::none: break;
  }
  return ok_status();
}

Status visit_layer(Tensors* tensors, const Description& d, int32_t i, Layer* l) {
  tensors->begin_layer(i);
  const std::string prefix = "blk." + std::to_string(d.first_block + i) + ".";
  const LayerShape& shape = d.layer(i);
  ORRERY_TRY(visit_mixer(tensors, d, shape, prefix, l));
  if (shape.post_norms) {
    ORRERY_TRY(tensors->vector(prefix + "post_attention_norm.weight", d.n_embd, true, &l->post_attn_norm));
    ORRERY_TRY(tensors->vector(prefix + "post_ffw_norm.weight", d.n_embd, true, &l->post_ffn_norm));
  }
  if (!shape.has_ffn()) return ok_status();
  ORRERY_TRY(tensors->vector(prefix + shape.ffn_norm + ".weight", d.n_embd, true, &l->ffn_norm));
  if (d.layer_norms) ORRERY_TRY(tensors->vector(prefix + shape.ffn_norm + ".bias", d.n_embd, false, &l->ffn_norm_bias));
  if (shape.experts) ORRERY_TRY(experts::find(tensors, d, shape.experts, prefix, &l->experts));
  if (!shape.experts || shape.experts.beside_ffn) ORRERY_TRY(feed_forward::find(tensors, d, shape.feed_forward, prefix, &l->feed_forward));
  if (d.n_per_layer > 0) ORRERY_TRY(per_layer::find(tensors, d, prefix, &l->per_layer));
  return d.output_scales ? tensors->number(prefix + "layer_output_scale.weight", &l->output_scale) : ok_status();
}

// Finds every tensor of the forward pass for `m` and `factors`. Refuses a file with other tensors.
Status visit(const gguf::File& file, const Description& d, TensorVisitor* visitor, Weights* m, RopeFactors* factors) {
  Tensors tensors(file, visitor);
  ORRERY_TRY(vocabulary::find_embedding(&tensors, d, m));
  ORRERY_TRY(attention::find_factors(&tensors, d, factors));
  if (d.n_per_layer > 0) ORRERY_TRY(per_layer::find_inputs(&tensors, d, &m->per_layer));
  if (d.encoder) ORRERY_TRY(encoder_inputs::find(&tensors, d, &m->inputs));
  m->layers.resize(static_cast<size_t>(d.n_layers));
  for (int32_t i = 0; i < d.n_layers; ++i) ORRERY_TRY(visit_layer(&tensors, d, i, &m->layers[static_cast<size_t>(i)]));
  tensors.end_layers();
  ORRERY_TRY(vocabulary::find_output(&tensors, d, m));
  if (d.score) ORRERY_TRY(score_head::find(&tensors, d, &m->score));
  if (d.dense_width > 0) ORRERY_TRY(dense_modules::find(&tensors, d, &m->dense));
  // This check runs before the tokenizer is built, so a larger vocabulary costs nothing.
  const gguf::Value* tokens = file.find("tokenizer.ggml.tokens");
  if (tokens != nullptr && tokens->size() > static_cast<uint64_t>(d.n_vocab))
    return error(Code::bad_model, "%s: the tokenizer has %llu tokens, tensor 'token_embd.weight' only %d rows", file.path().c_str(),
                 static_cast<unsigned long long>(tokens->size()), d.n_vocab);
  return tensors.refuse_the_rest(d);
}

// Finds every tensor of a head. Tables that the file lacks stay null: they are the model's.
Status visit_head(const gguf::File& file, const Description& d, TensorVisitor* visitor, Weights* m) {
  Tensors tensors(file, visitor);
  const std::string prefix = "blk." + std::to_string(d.first_block) + ".nextn.";
  ORRERY_TRY(guessing_head::find(&tensors, d, prefix, &m->head));
  ORRERY_TRY(tensors.matrix(prefix + "embed_tokens.weight", d.n_vocab, d.n_embd, false, &m->embedding));
  ORRERY_TRY(tensors.vector(prefix + "shared_head_norm.weight", d.n_embd, false, &m->output_norm));
  ORRERY_TRY(tensors.matrix(prefix + "shared_head_head.weight", d.n_vocab, d.n_embd, false, &m->output));
  m->layers.resize(1);
  return visit_layer(&tensors, d, 0, &m->layers[0]);
}

// Whether a matrix is a factor of products: the token embedding's rows are read.
bool multiplies(const gguf::Tensor& t) { return t.name != "token_embd.weight"; }

// Whether a layer's matrix goes with it to the reservoir. Routers are asked before their layer begins.
bool moves(const gguf::Tensor& t) {
  constexpr std::string_view kRouter = ".ffn_gate_inp.weight";
  return t.name.size() < kRouter.size() || t.name.compare(t.name.size() - kRouter.size(), kRouter.size(), kRouter) != 0;
}

// Checks names and shapes and places nothing.
class Checker final : public TensorVisitor {
 public:
  Status matrix(const gguf::Tensor&, Weight*) override { return ok_status(); }
  Status matrices(const gguf::Tensor&, int64_t, ExpertWeights*) override { return ok_status(); }
  Status vector(const gguf::Tensor&, Ptr<const float>*) override { return ok_status(); }
};

// Checks as well, and lists matrices.
class Namer final : public TensorVisitor {
 public:
  explicit Namer(std::vector<NamedMatrix>* out) : out_(*out) {}
  Status matrix(const gguf::Tensor& t, Weight*) override {
    if (multiplies(t)) out_.push_back({&t, nullptr});
    return ok_status();
  }
  Status heads(const gguf::Tensor&, Weight*) override { return ok_status(); }
  Status matrices(const gguf::Tensor&, int64_t, ExpertWeights*) override { return ok_status(); }
  Status vector(const gguf::Tensor&, Ptr<const float>*) override { return ok_status(); }

 private:
  std::vector<NamedMatrix>& out_;
};

// Adds up the bytes that the arena must hold.
class Counter final : public TensorVisitor {
 public:
  Counter(const gguf::File& file, const Description& d, const Device& device, const WeightsPlace& place = {})
      : file_(file), d_(d), device_(device), place_(place) {}
  void layer(int32_t i) override {
    layer_ = i;
    if (i >= 0) layers_.resize(static_cast<size_t>(i) + 1);
  }
  Status matrix(const gguf::Tensor& t, Weight* out) override {
    ORRERY_TRY(heads(t, out));
    if (layer_ < 0 || !moves(t)) return ok_status();
    OfLayer& of = layers_.back();
    of.bytes += unit_stride(t, 1, device_), of.repacked += align_up(repacked_bytes(file_, t, device_, place_), kWeightAlignment);
    of.tensors.push_back(&t);
    return ok_status();
  }
  Status heads(const gguf::Tensor& t, Weight* out) override {
    out->data.address = 1;  // present
    matrices_ += align_up(repacked_bytes(file_, t, device_, place_), kWeightAlignment);
    return ok_status();
  }
  Status feed_forward(const gguf::Tensor& t, FeedForwardPart part, FeedForwardMatrices* out) override {
    const LayerShape& shape = d_.layer(layer_);
    if (place_.columns == WeightsPlace::kAll || shape.experts || !shape.feed_forward.gated) return matrix(t, matrix_of(part, out));
    if (blocks_.empty() || blocks_.back().layer != layer_) blocks_.push_back({layer_, shape.feed_forward.width, d_.n_embd});
    HostColumns::Source& block = blocks_.back();
    if (part == FeedForwardPart::down) block.down = t.type;
    if (part == FeedForwardPart::gate || part == FeedForwardPart::gate_up) block.gate = t.type;
    if (part == FeedForwardPart::up || part == FeedForwardPart::gate_up) block.up = t.type;
    block_tensors_.push_back(&t);
    return ok_status();
  }
  Status matrices(const gguf::Tensor& t, int64_t n, ExpertWeights* out) override {
    out->first.data.address = 1;
    experts_ += static_cast<uint64_t>(n) * matrix_stride(t, n, device_);
    const int32_t n_experts = d_.layer(layer_).experts.router.n_experts;
    if (units_.empty() || units_.back().layer != layer_) units_.push_back({layer_, n_experts});
    const auto parts = static_cast<uint64_t>(n / n_experts);
    const uint64_t bytes = parts * unit_stride(t, n, device_);
    units_.back().bytes += bytes;
    if (place_.experts_by_host) {
      host_units_.resize(units_.size());
      HostExperts::UnitShape &there = host_units_.back().device, &here = host_units_.back().host;
      there.down = there.end, here.down = here.end;  // the layer's last matrix is `down`
      there.end += bytes, here.end += parts * host_unit_stride(t, n, device_);
    }
    expert_tensors_.push_back(&t);
    return ok_status();
  }
  Status vector(const gguf::Tensor& t, Ptr<const float>*) override {
    const uint64_t bytes = align_up(t.n_elements * sizeof(float), kWeightAlignment);
    vectors_ += bytes;
    if (!in_place(t, device_)) converted_ += bytes;
    if (place_.experts_by_host && is_experts_bias(t)) {
      if (units_.empty() || units_.back().layer != layer_)
        return error(Code::internal, "tensor '%s' comes before its experts", gguf::printable(t.name).c_str());
      host_units_.back().biases_bytes += t.n_elements * sizeof(float);
    }
    return ok_status();
  }
  // Depends on the arena's size, not on its free bytes, so the same file is always placed in the same way.
  Placement placement(uint64_t arena_bytes) const {
    Placement placement;
    for (const ExpertUnits::Layer& layer : units_) placement.units.add(layer);
    const bool store = placement.units && place_.experts != WeightsPlace::kAll;
    if (store) placement.in_units = expert_tensors_;
    for (const OfLayer& of : layers_) placement.layer_bytes.push_back(of.bytes), placement.layer_arena_bytes.push_back(of.repacked);
    uint64_t away = 0;
    if (const auto n = static_cast<int64_t>(layers_.size()); place_.layers != WeightsPlace::kAll && place_.layers < n) {
      placement.away = LayerUnits::spread(placement.layer_bytes, static_cast<int32_t>(n - place_.layers));
      placement.layers = LayerStore::needs(placement.away, place_.in_place);
    }
    for (const LayerUnits::Layer& layer : placement.away.layers) {
      const OfLayer& of = layers_[static_cast<size_t>(layer.layer)];
      away += of.repacked;
      placement.in_units.insert(placement.in_units.end(), of.tensors.begin(), of.tensors.end());
    }
    const uint64_t matrices = matrices_ - away + (store ? 0 : experts_);
    placement.repacks = !device_.info().reads_host_memory || (matrices > 0 && matrices <= arena_bytes / 2);
    placement.arena_bytes = placement.repacks ? vectors_ + matrices : converted_;
    if (store && place_.experts_by_host) {
      placement.host = HostExperts::layout(placement.units, {host_units_.data(), host_units_.size()}, !device_.info().reads_host_memory,
                                           static_cast<uint64_t>(place_.experts));
      placement.experts = {placement.host.arena_bytes, placement.host.reservoir_bytes};
    } else if (store) {
      placement.experts = ExpertStore::needs(placement.units, static_cast<uint64_t>(place_.experts), place_.in_place);
    }
    placement.columns = HostColumns::layout({blocks_.data(), blocks_.size()}, device_, place_.columns);
    placement.in_units.insert(placement.in_units.end(), block_tensors_.begin(), block_tensors_.end());
    return placement;
  }

 private:
  // The matrices of a layer that may lie in the reservoir: their bytes there, and those in the arena, if they are repacked.
  struct OfLayer {
    uint64_t bytes = 0, repacked = 0;
    std::vector<const gguf::Tensor*> tensors;
  };

  const gguf::File& file_;
  const Description& d_;
  const Device& device_;
  const WeightsPlace place_;
  int32_t layer_ = -1;
  std::vector<OfLayer> layers_;
  std::vector<ExpertUnits::Layer> units_;
  std::vector<HostExperts::Unit> host_units_;  // of the same layers, with a host
  std::vector<const gguf::Tensor*> expert_tensors_, block_tensors_;
  std::vector<HostColumns::Source> blocks_;  // whose columns are divided
  uint64_t matrices_ = 0, experts_ = 0;      // repacked: experts' matrices, and all others
  uint64_t vectors_ = 0, converted_ = 0;     // all vectors; vectors that must be converted
};

// Finds the place of each tensor, in the arena's region or in the file. place() then fills the places, in the order of
// the file, so that the system reads ahead. It counts bytes for the progress reports.
class Placer final : public TensorVisitor {
 public:
  Placer(Turns* turns, Model* model, bool repacks, uint64_t total_bytes, const LoadOptions& options)
      : turns_(*turns), model_(*model), options_(options), repacks_(repacks), next_(model->region.data()), total_(total_bytes) {}

  Status matrix(const gguf::Tensor& t, Weight* out) override {
    if (multiplies(t)) model_.matrices.push_back({&t, out});
    if (!away() || !moves(t)) return heads(t, out);
    Job job = {&t, out, nullptr, model_.layers->place(layer_) + layer_offset_};
    job.host = model_.layers->at(layer_) + layer_offset_;
    layer_offset_ += unit_stride(t, 1, turns_.device());
    jobs_.push_back(job);
    return ok_status();
  }
  Status feed_forward(const gguf::Tensor& t, FeedForwardPart part, FeedForwardMatrices* out) override {
    if (!model_.columns || layer_ < 0 || !model_.columns->has(layer_)) return matrix(t, matrix_of(part, out));
    model_.matrices.push_back({&t, nullptr});
    Job job = {&t, nullptr, nullptr, {}};
    job.divided = out, job.part = part, job.layer = layer_;
    jobs_.push_back(job);
    return ok_status();
  }
  Status heads(const gguf::Tensor& t, Weight* out) override {
    const Device& device = turns_.device();
    if (rows_alone(*model_.file, t) && options_.place.rows_on_host(device) && !device.info().reads_host_memory) return table(t, out);
    const uint64_t bytes = repacks_ ? repacked_bytes(*model_.file, t, device, options_.place) : 0;
    jobs_.push_back({&t, out, nullptr, bytes ? take(bytes) : Ptr<std::byte>{}});
    return ok_status();
  }
  void layer(int32_t i) override { layer_ = i, unit_offset_ = host_offset_ = layer_offset_ = 0; }
  Status matrices(const gguf::Tensor& t, int64_t n, ExpertWeights* out) override {
    if (HostExperts* host = model_.host.get()) {
      const experts::Weights& own = own_experts();
      ExpertMatrices& there = host->matrices(layer_);
      ExpertWeights* const twin = out == &own.gate ? &there.gate : out == &own.up ? &there.up : &there.down;
      const auto parts = static_cast<uint64_t>(n / model_.description.layer(layer_).experts.router.n_experts);
      out->stride = unit_stride(t, n, turns_.device()), twin->stride = host_unit_stride(t, n, turns_.device());
      out->units = host->device_places(layer_), out->offset = unit_offset_;
      twin->units = host->host_places(layer_), twin->offset = host_offset_;
      unit_offset_ += parts * out->stride, host_offset_ += parts * twin->stride;
      jobs_.push_back({&t, &out->first, nullptr, {}, n});
      jobs_.back().in_units = out, jobs_.back().on_host = twin, jobs_.back().layer = layer_;
      return ok_status();
    }
    if (const ExpertStore* store = model_.experts.get()) {
      const int64_t parts = n / model_.description.layer(layer_).experts.router.n_experts;
      out->stride = unit_stride(t, n, turns_.device());
      out->units = store->places(layer_), out->offset = unit_offset_;
      unit_offset_ += static_cast<uint64_t>(parts) * out->stride;
      jobs_.push_back({&t, &out->first, nullptr, {}, n});
      jobs_.back().in_units = out, jobs_.back().layer = layer_;
      return ok_status();
    }
    const uint64_t stride = repacks_ ? matrix_stride(t, n, turns_.device()) : 0;
    out->stride = stride ? stride : t.bytes / static_cast<uint64_t>(n);
    jobs_.push_back({&t, &out->first, nullptr, stride ? take(static_cast<uint64_t>(n) * stride) : Ptr<std::byte>{}, n, stride});
    return ok_status();
  }
  Status vector(const gguf::Tensor& t, Ptr<const float>* out) override {
    if (HostExperts* host = model_.host.get(); host && is_experts_bias(t)) {
      const experts::Weights& own = own_experts();
      ExpertMatrices& there = host->matrices(layer_);
      float* const to = host->take_biases(layer_, t.n_elements);
      gguf::dequantize_row(t.type, t.data, to, t.n_elements);
      (out == &own.gate_bias ? there.gate_bias : out == &own.up_bias ? there.up_bias : there.down_bias) = {reinterpret_cast<uintptr_t>(to)};
    }
    const bool stays = !repacks_ && in_place(t, turns_.device());
    jobs_.push_back({&t, nullptr, out, stays ? Ptr<std::byte>{} : take(t.n_elements * sizeof(float))});
    return ok_status();
  }
  Status factors(const gguf::Tensor& t, std::vector<float>* out) override {
    out->resize(t.n_elements);
    gguf::dequantize_row(t.type, t.data, out->data(), t.n_elements);
    for (size_t i = 0; i < out->size(); ++i)  // zero, negative and infinite divisors are errors
      if (!(std::isfinite((*out)[i]) && (*out)[i] > 0.0f))
        return error(Code::bad_model, "%s: tensor '%s' value %zu is %g, expected a positive number", model_.file->path().c_str(),
                     gguf::printable(t.name).c_str(), i, static_cast<double>((*out)[i]));
    return ok_status();
  }
  Status on_host(const gguf::Tensor& t, std::vector<float>* out) override {
    out->resize(t.n_elements);
    gguf::dequantize_row(t.type, t.data, out->data(), t.n_elements);
    return account(t);
  }
  Status table(const gguf::Tensor& t, Weight* out) override {
    jobs_.push_back({&t, out, nullptr, {}, 1, 0, true});
    return ok_status();
  }
  Status number(const gguf::Tensor& t, float* out) override {
    gguf::dequantize_row(t.type, t.data, out, 1);
    if (std::isfinite(*out)) return ok_status();
    return error(Code::bad_model, "%s: tensor '%s' is %g, expected a number", model_.file->path().c_str(), gguf::printable(t.name).c_str(),
                 static_cast<double>(*out));
  }
  Status place() {
    std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) {
      return std::pair(a.tensor->part, a.tensor->offset) < std::pair(b.tensor->part, b.tensor->offset);
    });
    uint64_t copied_bytes = 0;
    for (const Job& job : jobs_)
      if (job.copied()) copied_.push_back(job.tensor), copied_bytes += job.tensor->bytes;
    std::unique_ptr<Loading> loading;
    if (copied_bytes > 0) {
      ORRERY_ASSIGN(const Turn turn, take_turn());
      loading = turn.backend().begin_loading(copied_bytes, options_.n_threads, options_.priority);
    }
    gguf::ReadAhead ahead(*model_.file, copied_);
    size_t n_copied = 0;
    for (const Job& job : jobs_) {
      ORRERY_TRY(account(*job.tensor));
      if (job.copied()) ahead.begin(n_copied++);
      if (const RouterShape& router = model_.description.experts().router; job.n > 1)
        model_.n_used_parameters -=
            job.tensor->n_elements / static_cast<uint64_t>(router.n_experts) * static_cast<uint64_t>(router.n_experts - router.n_used);
      if (job.table)
        *job.matrix = {job.tensor->type,
                       static_cast<int64_t>(job.tensor->dims[1]),
                       static_cast<int64_t>(job.tensor->dims[0]),
                       {reinterpret_cast<uint64_t>(job.tensor->data)}};
      else
        ORRERY_TRY(job.divided    ? divide(job)
                   : job.on_host  ? deal_units(job)
                   : job.in_units ? place_units(job)
                   : job.host     ? place_away(job)
                   : job.matrix   ? place_matrix(job)
                                  : place_vector(job));
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
    int64_t n = 1;                            // matrices of the tensor, side by side
    uint64_t stride = 0;                      // between them at `at`
    bool table = false;                       // TensorVisitor::table()
    const ExpertWeights* in_units = nullptr;  // matrices go to the store's units
    ExpertWeights* on_host = nullptr;         // if the host computes some: the same matrices there
    int32_t layer = 0;
    std::byte* host = nullptr;               // where the matrix of a layer in host memory is written; operations find it at `at`
    FeedForwardMatrices* divided = nullptr;  // its columns are divided: this is the device's part
    FeedForwardPart part = FeedForwardPart::down;
    bool copied() const { return at || in_units || divided; }
  };

  const experts::Weights& own_experts() const { return model_.weights.layers[static_cast<size_t>(layer_)].experts; }
  bool away() const { return model_.layers && layer_ >= 0 && model_.layers->has(layer_); }

  // Writes a matrix, as the backend stores it, to host memory.
  Status repack(const Turn& turn, const gguf::Tensor& t, int64_t rows, int64_t cols, uint64_t bytes, const std::byte* from, std::byte* to) {
    if (turns_.device().weight_bytes(t.type, rows, cols) > 0) return turn.backend().repack_weight(t.type, rows, cols, from, to);
    std::memcpy(to, from, bytes);
    return ok_status();
  }

  Status place_away(const Job& job) {
    const gguf::Tensor& t = *job.tensor;
    const int64_t cols = static_cast<int64_t>(t.dims[0]), rows = static_cast<int64_t>(t.n_elements) / cols;
    ORRERY_ASSIGN(const Turn turn, take_turn());
    ORRERY_TRY(repack(turn, t, rows, cols, t.bytes, t.data, job.host));
    *job.matrix = {t.type, rows, cols, job.at, turns_.device().weight_bytes(t.type, rows, cols) > 0};
    return ok_status();
  }

  // Takes a turn for each expert: its matrices in this tensor.
  Status place_units(const Job& job) {
    const gguf::Tensor& t = *job.tensor;
    const int64_t cols = static_cast<int64_t>(t.dims[0]), rows = static_cast<int64_t>(t.n_elements) / cols / job.n;
    const int64_t n_experts = model_.description.layer(job.layer).experts.router.n_experts, parts = job.n / n_experts;
    const uint64_t bytes = t.bytes / static_cast<uint64_t>(job.n);
    const bool repacks = turns_.device().weight_bytes(t.type, rows, cols) > 0;
    for (int64_t e = 0; e < n_experts; ++e) {
      if (cancelled()) return cancellation();
      ORRERY_ASSIGN(const Turn turn, take_turn());
      for (int64_t i = 0; i < parts; ++i) {
        const std::byte* const from = t.data + static_cast<uint64_t>(e * parts + i) * bytes;
        std::byte* const to =
            model_.experts->at(job.layer, static_cast<int32_t>(e)) + job.in_units->offset + static_cast<uint64_t>(i) * job.in_units->stride;
        ORRERY_TRY(repack(turn, t, rows, cols, bytes, from, to));
      }
    }
    *job.matrix = {t.type, rows, cols, {1}, repacks};  // `data` is unused but for saying that the matrices are there
    return ok_status();
  }

  // The same of experts some of which the host computes.
  Status deal_units(const Job& job) {
    const gguf::Tensor& t = *job.tensor;
    HostExperts& experts = *model_.host;
    const int64_t cols = static_cast<int64_t>(t.dims[0]), rows = static_cast<int64_t>(t.n_elements) / cols / job.n;
    const int64_t n_experts = model_.description.layer(job.layer).experts.router.n_experts, parts = job.n / n_experts;
    const uint64_t bytes = t.bytes / static_cast<uint64_t>(job.n);
    const bool repacks = turns_.device().weight_bytes(t.type, rows, cols) > 0,
               host_repacks = !experts.layout().as_in_file && experts.host().weight_bytes(t.type, rows, cols) > 0;
    for (int32_t e = 0; e < n_experts; ++e) {
      if (cancelled()) return cancellation();
      ORRERY_ASSIGN(const Turn turn, take_turn());
      for (int64_t i = 0; i < parts; ++i) {
        const std::byte* const from = t.data + static_cast<uint64_t>(e * parts + i) * bytes;
        const auto part = static_cast<uint64_t>(i);
        if (experts.on_device(job.layer, e)) {
          const Ptr<std::byte> to = experts.device_unit(job.layer, e) + (job.in_units->offset + part * job.in_units->stride);
          Weight placed;
          if (repacks) ORRERY_TRY(turn.backend().place_weight(t.type, rows, cols, from, to, &placed));
          else turn.backend().upload(to, from, bytes);
        } else {
          std::byte* const to = experts.host_unit(job.layer, e) + job.on_host->offset + part * job.on_host->stride;
          if (host_repacks) ORRERY_TRY(experts.host().repack_weight(t.type, rows, cols, from, to));
          else std::memcpy(to, from, bytes);
        }
      }
    }
    *job.matrix = {t.type, rows, cols, {1}, repacks};
    job.on_host->first = {t.type, rows, cols, {1}, host_repacks};
    return ok_status();
  }

  // Writes a matrix to the device's memory, as the device stores it.
  Status place_part(TensorType type, int64_t rows, int64_t cols, const std::byte* from, Ptr<std::byte> to, Weight* out) {
    ORRERY_ASSIGN(const Turn turn, take_turn());
    if (turns_.device().weight_bytes(type, rows, cols) > 0) return turn.backend().place_weight(type, rows, cols, from, to, out);
    turn.backend().upload(to, from, row_bytes(type, static_cast<uint64_t>(rows * cols)));
    *out = {type, rows, cols, {to.address}, false};
    return turn.backend().synchronize();
  }

  // Both parts of a feed-forward block's matrix: rows of gate and up, columns of down.
  Status divide(const Job& job) {
    const gguf::Tensor& t = *job.tensor;
    const HostColumns& columns = *model_.columns;
    const HostColumns::Layout::Layer& layer = columns.of(job.layer);
    const Ptr<std::byte> there = columns.there(job.layer);
    std::byte* const host = columns.host_at(job.layer);
    const uint64_t row = row_bytes(t.type, t.dims[0]);
    const auto rows_of = [&](const HostColumns::Matrix& m, const HostColumns::Matrix& m_host, const std::byte* from,
                             Weight* out) -> Status {
      if (m.rows > 0) ORRERY_TRY(place_part(t.type, m.rows, m.cols, from, there + m.offset, out));
      std::memcpy(host + m_host.offset, from + static_cast<uint64_t>(m.rows) * row, m_host.bytes);
      return ok_status();
    };
    const HostColumns::Block &on_device = layer.there, &on_host = layer.host;
    if (job.part == FeedForwardPart::gate || job.part == FeedForwardPart::gate_up)
      ORRERY_TRY(rows_of(on_device.gate, on_host.gate, t.data, &job.divided->gate));
    if (job.part == FeedForwardPart::up) return rows_of(on_device.up, on_host.up, t.data, &job.divided->up);
    if (job.part == FeedForwardPart::gate_up)
      return rows_of(on_device.up, on_host.up, t.data + static_cast<uint64_t>(layer.width) * row, &job.divided->up);
    if (job.part != FeedForwardPart::down) return ok_status();
    const uint64_t first = row_bytes(t.type, static_cast<uint64_t>(layer.n_there)), rest = row - first, n_rows = t.dims[1];
    std::vector<std::byte> gathered(first * n_rows);
    for (uint64_t r = 0; r < n_rows; ++r) {
      std::memcpy(gathered.data() + r * first, t.data + r * row, first);
      std::memcpy(host + on_host.down.offset + r * rest, t.data + r * row + first, rest);
    }
    if (first == 0) return ok_status();
    return place_part(t.type, on_device.down.rows, on_device.down.cols, gathered.data(), there + on_device.down.offset, &job.divided->down);
  }

  Status place_matrix(const Job& job) {
    const gguf::Tensor& t = *job.tensor;
    const int64_t cols = static_cast<int64_t>(t.dims[0]), rows = static_cast<int64_t>(t.n_elements) / cols / job.n;
    const uint64_t bytes = t.bytes / static_cast<uint64_t>(job.n);
    ORRERY_ASSIGN(const Turn turn, take_turn());
    ORRERY_TRY(turn.backend().place_weight(t.type, rows, cols, t.data, job.at, job.matrix));
    for (uint64_t i = 1; job.at && i < static_cast<uint64_t>(job.n); ++i) {
      Weight further;
      ORRERY_TRY(turn.backend().place_weight(t.type, rows, cols, t.data + i * bytes, job.at + i * job.stride, &further));
    }
    return ok_status();
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
  Status cancellation() const { return error(Code::cancelled, "%s: loading was cancelled", model_.file->path().c_str()); }
  Ptr<std::byte> take(uint64_t bytes) {
    const Ptr<std::byte> at = next_;
    next_ = next_ + align_up(bytes, kWeightAlignment);
    return at;
  }
  Status account(const gguf::Tensor& t) {
    if (cancelled()) return cancellation();
    done_ += t.bytes;
    model_.n_parameters += t.n_elements, model_.n_used_parameters += t.n_elements;
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
  int32_t layer_ = -1;
  uint64_t unit_offset_ = 0, host_offset_ = 0, layer_offset_ = 0;
  uint64_t done_ = 0, total_;
  std::map<TensorType, uint64_t> elements_by_type_;
};

}  // namespace

uint64_t repacked_bytes(const gguf::File& file, const gguf::Tensor& t, const Device& device, const WeightsPlace& place) {
  if (t.name == per_layer::kTable || (rows_alone(file, t) && place.rows_on_host(device))) return 0;
  return device.weight_bytes(t.type, static_cast<int64_t>(t.n_elements / t.dims[0]), static_cast<int64_t>(t.dims[0]));
}

Status check_tensors(const gguf::File& file, const Description& d) {
  Checker checker;
  Weights scratch;
  RopeFactors none;
  return visit(file, d, &checker, &scratch, &none);
}

Status name_matrices(const gguf::File& file, const Description& d, std::vector<NamedMatrix>* out) {
  Namer namer(out);
  Weights scratch;
  RopeFactors none;
  return visit(file, d, &namer, &scratch, &none);
}

Result<Placement> place_weights(const gguf::File& file, const Description& d, const Device& device, uint64_t arena_bytes,
                                const WeightsPlace& place) {
  for (const LayerShape& layer : d.layers) {
    const bool attends = layer.mixer == Mixer::attention, delta_net = layer.mixer == Mixer::delta_net;
    if (layer.mixer == Mixer::none || (attends && !layer.attention.gated && !layer.attention.own_gate)) continue;
    Status known = device.check_recurrent(delta_net ? &layer.delta_net : nullptr);
    if (known.ok() && layer.mixer == Mixer::mamba2) known = device.check_mamba2(layer.mamba2);
    if (!known.ok()) return error(known.code(), "%s: %s", file.path().c_str(), known.message());
  }
  if (d.encoder)
    if (const Status known = device.check_encoder(); !known.ok())
      return error(known.code(), "%s: architecture '%s': %s", file.path().c_str(), d.family, known.message());
  for (const LayerShape& layer : d.layers) {
    if (!layer.experts) continue;
    if (const Status known = device.check_experts(layer.experts.router); !known.ok())
      return error(known.code(), "%s: %s", file.path().c_str(), known.message());
  }
  for (const KvGroup& group : d.groups)
    if (const Status heads = device.check_heads(group.head_dim, KvType::f16, group.shared_values); !heads.ok())
      return error(heads.code(), "%s: %s", file.path().c_str(), heads.message());
  Counter counter(file, d, device, place);
  Weights scratch;
  RopeFactors none;
  ORRERY_TRY(visit(file, d, &counter, &scratch, &none));
  return counter.placement(arena_bytes);
}

Result<Placement> place_head(const gguf::File& file, const Description& head, const Device& device, uint64_t arena_bytes) {
  Counter counter(file, head, device);
  Weights scratch;
  ORRERY_TRY(visit_head(file, head, &counter, &scratch));
  return counter.placement(arena_bytes);
}

Result<std::unique_ptr<Model>> load_head(const Model& of, Turns* turns, kv::Arena* arena, const LoadOptions& options) {
  auto m = std::make_unique<Model>(of.file);
  const gguf::File& file = *m->file;
  m->description = describe_head(of.description);
  ORRERY_ASSIGN(const Placement placement, place_head(file, m->description, turns->device(), arena->bytes()));
  ORRERY_ASSIGN(m->region, kv::ArenaRegion::take(arena, placement.arena_bytes, "the model's head that guesses tokens"));
  Placer placer(turns, m.get(), placement.repacks, file.file_bytes(), options);
  Weights& w = m->weights;
  ORRERY_TRY(visit_head(file, m->description, &placer, &w));
  ORRERY_TRY(placer.place());
  if (!w.embedding) w.embedding = of.weights.embedding, w.embedding_on_host = of.weights.embedding_on_host;
  if (!w.output_norm) w.output_norm = of.weights.output_norm;
  if (!w.output) w.output = of.weights.output;
  m->output_bytes = of.output_bytes;
  m->rope_factors = of.rope_factors;
  {
    ORRERY_ASSIGN(const Turn turn, placer.take_turn());
    ORRERY_TRY(turn.backend().synchronize());  // reports errors of earlier uploads
  }
  m->main_type = placer.main_type();
  std::copy(std::begin(of.fingerprint), std::end(of.fingerprint), m->fingerprint);
  for (const gguf::Tensor* t : placer.copied()) file.release_pages(*t);
  return m;
}

Result<std::unique_ptr<Model>> load_model(gguf::File taken, Turns* turns, kv::Arena* arena, const LoadOptions& options) {
  auto m = std::make_unique<Model>(std::make_shared<const gguf::File>(std::move(taken)));
  const gguf::File& file = *m->file;
  ORRERY_ASSIGN(m->description, read_description(file, options.rope, options.families));

  ORRERY_ASSIGN(const Placement placement, place_weights(file, m->description, turns->device(), arena->bytes(), options.place));
  ORRERY_ASSIGN(m->region, kv::ArenaRegion::take(arena, placement.arena_bytes, "the model"));
  if (placement.host) {
    ORRERY_ASSIGN(m->host, HostExperts::make(placement.host, options.host, options.sides, arena, options.reservoir, options.io));
  } else if (placement.store()) {
    ORRERY_ASSIGN(m->experts,
                  ExpertStore::make(placement.units, static_cast<uint64_t>(options.place.experts), arena, options.reservoir, options.io));
  }
  if (placement.columns) {
    ORRERY_ASSIGN(m->columns, HostColumns::make(placement.columns, options.host, options.sides, arena, options.reservoir, options.io));
  }
  if (placement.away) {
    ORRERY_ASSIGN(m->layers, LayerStore::make(placement.away, arena, options.reservoir, options.io));
  }
  Placer placer(turns, m.get(), placement.repacks, file.file_bytes(), options);
  ORRERY_TRY(visit(file, m->description, &placer, &m->weights, &m->rope_factors));
  ORRERY_TRY(placer.place());
  if (m->experts) {
    ORRERY_ASSIGN(const Turn turn, placer.take_turn());
    ORRERY_TRY(m->experts->begin(&turn.backend()));
  }
  if (m->host) {
    ORRERY_ASSIGN(const Turn turn, placer.take_turn());
    ORRERY_TRY(m->host->begin(&turn.backend()));
  }
  if (m->columns) ORRERY_TRY(m->columns->begin());
  if (m->layers) ORRERY_TRY(m->layers->begin());
  const Device& device = turns->device();
  m->weights.embedding_on_host = m->weights.output && options.place.rows_on_host(device) && !device.info().reads_host_memory;
  if (!m->weights.output) m->weights.output = m->weights.embedding;  // tied
  const gguf::Tensor* output = file.find_tensor("output.weight");
  m->output_bytes = (output ? output : file.find_tensor("token_embd.weight"))->bytes;
  {
    ORRERY_ASSIGN(const Turn turn, placer.take_turn());
    ORRERY_TRY(turn.backend().synchronize());  // reports errors of earlier uploads
  }
  if (options.progress && !options.progress(file.file_bytes(), file.file_bytes()))
    return error(Code::cancelled, "%s: loading was cancelled", file.path().c_str());
  m->main_type = placer.main_type();
  if (options.full_fingerprint) ORRERY_TRY(file.full_fingerprint(options.progress, m->fingerprint));
  else file.fingerprint(false, m->fingerprint);
  for (const gguf::Tensor* t : placer.copied()) file.release_pages(*t);  // the arena holds copies; the fingerprint has read some
  return m;
}

}  // namespace orrery::model
