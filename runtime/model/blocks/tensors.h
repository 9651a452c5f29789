// Finds the tensors of a file by name, checks their shapes, and hands each to a visitor. Afterwards it knows the tensors that nothing has
// asked for. One walk over a model's tensors serves the check, the plan, which counts bytes, and the loader, which places them.
#pragma once

#include <string>
#include <vector>

#include "runtime/backend/experts.h"
#include "runtime/backend/step.h"
#include "runtime/base/status.h"
#include "runtime/gguf/gguf.h"
#include "runtime/model/description/description.h"
#include "runtime/model/store/host_columns.h"

namespace orrery::model {

// One call for each tensor of a model.
class TensorVisitor {
 public:
  virtual ~TensorVisitor() = default;
  virtual void layer(int32_t) {}  // the next tensors are this layer's; -1: no layer's
  virtual Status matrix(const gguf::Tensor& t, Weight* out) = 0;
  // The matrix of a dense feed-forward block, whose columns may be divided between the device and the host.
  virtual Status feed_forward(const gguf::Tensor& t, FeedForwardPart part, FeedForwardMatrices* out) {
    return matrix(t, matrix_of(part, out));
  }
  // The matrices of several heads as one.
  virtual Status heads(const gguf::Tensor& t, Weight* out) { return matrix(t, out); }
  // A tensor with n matrices of equal shape, one after another.
  virtual Status matrices(const gguf::Tensor& t, int64_t n, ExpertWeights* out) = 0;
  virtual Status vector(const gguf::Tensor& t, Ptr<const float>* out) = 0;
  // A table that stays where the file lies, on every device: the host reads its rows. out->data is the host's address.
  virtual Status table(const gguf::Tensor&, Weight*) { return ok_status(); }
  virtual Status number(const gguf::Tensor&, float*) { return ok_status(); }  // it stays on the host
  // Divisors of the rotary frequencies; they stay on the host.
  virtual Status factors(const gguf::Tensor&, std::vector<float>*) { return ok_status(); }
  // Values that the host computes with, as float32.
  virtual Status on_host(const gguf::Tensor&, std::vector<float>*) { return ok_status(); }
};

class Tensors {
 public:
  Tensors(const gguf::File& file, TensorVisitor* visitor) : file_(file), visitor_(visitor), used_(file.tensors().size()) {}

  void begin_layer(int32_t i) { visitor_->layer(i); }
  void end_layers() { visitor_->layer(-1); }
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  // Each refuses with bad_model a tensor of another shape, and a required one that is missing. *out stays as it is without a tensor.
  Status matrix(const std::string& name, int64_t rows, int64_t cols, bool required, Weight* out);
  Status feed_forward(const std::string& name, int64_t rows, int64_t cols, FeedForwardPart part, FeedForwardMatrices* out);
  // A tensor of n_experts times `rows` rows, read as matrices of rows / parts each: of an expert, `parts` follow each other.
  Status experts(const std::string& name, int64_t n_experts, int64_t parts, int64_t rows, int64_t cols, ExpertWeights* out);
  // The matrices of n_heads heads, (rows, cols) each, read as one matrix of n_heads * rows rows.
  Status heads(const std::string& name, int64_t n_heads, int64_t rows, int64_t cols, Weight* out);
  Status vector(const std::string& name, int64_t n, bool required, Ptr<const float>* out) { return floats(name, 1, n, required, out); }
  Status floats(const std::string& name, int64_t rows, int64_t cols, bool required, Ptr<const float>* out);  // a table of float32
  Status factors(const std::string& name, int64_t n, bool required, std::vector<float>* out);
  Status on_host(const std::string& name, int64_t rows, int64_t cols, bool required, std::vector<float>* out);
  Status table(const std::string& name, int64_t rows, int64_t cols, Weight* out);
  Status number(const std::string& name, float* out);  // one value, not required
  // A tensor that the file may have and the model does not use.
  Status unused(const std::string& name, int64_t rows, int64_t cols) { return take(name, 1, rows, cols, false).take_status(); }
  // A tensor that nothing has read belongs to a model that we do not support. Ignoring the tensor would give wrong
  // answers.
  Status refuse_the_rest(const Description& d) const;

 private:
  // Null if the tensor is absent and not required.
  Result<const gguf::Tensor*> take(const std::string& name, int64_t n, int64_t rows, int64_t cols, bool required);

  const gguf::File& file_;
  TensorVisitor* visitor_;
  std::vector<bool> used_;  // by index in the file's tensors
};

}  // namespace orrery::model
