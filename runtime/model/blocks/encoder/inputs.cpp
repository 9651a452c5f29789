#include "runtime/model/blocks/encoder/inputs.h"

#include <algorithm>

namespace orrery::model::encoder_inputs {

Status read(Reading& in, bool learned_positions) {
  const gguf::File& file = in.keys.file();
  constexpr uint64_t kMostTypes = 16;
  in.d.n_positions = learned_positions ? in.d.trained_context : 0;
  const gguf::Tensor* types = file.find_tensor("token_types.weight");
  if (types == nullptr) return ok_status();
  if (types->dims[1] < 1 || types->dims[1] > kMostTypes)
    return error(Code::bad_model, "%s: tensor 'token_types.weight' has %llu rows, expected 1 to %llu", file.path().c_str(),
                 static_cast<unsigned long long>(types->dims[1]), static_cast<unsigned long long>(kMostTypes));
  in.d.n_token_types = static_cast<int32_t>(types->dims[1]);
  return ok_status();
}

Status find(Tensors* tensors, const Description& d, Weights* out) {
  if (!d.layer_norms) return ok_status();
  if (d.n_positions > 0) ORRERY_TRY(tensors->on_host("position_embd.weight", d.n_positions, d.n_embd, true, &out->positions));
  if (d.n_token_types > 0) ORRERY_TRY(tensors->on_host("token_types.weight", d.n_token_types, d.n_embd, true, &out->token_types));
  ORRERY_TRY(tensors->vector("token_embd_norm.weight", d.n_embd, true, &out->norm));
  return tensors->vector("token_embd_norm.bias", d.n_embd, false, &out->norm_bias);
}

void run(Pass& pass, const Weights& w) {
  const auto n_embd = static_cast<size_t>(pass.d.n_embd);
  if (!w.positions.empty() || !w.token_types.empty()) {
    std::vector<float> sums(static_cast<size_t>(pass.n_rows) * n_embd);
    const Step& step = pass.steps[0];
    for (size_t r = 0; r < step.rows.size(); ++r) {
      float* const to = sums.data() + r * n_embd;
      const int32_t position = step.rows[r].position, type = std::min(position >= step.second_from ? 1 : 0, pass.d.n_token_types - 1);
      const float* const of_type = type >= 0 ? w.token_types.data() + static_cast<size_t>(type) * n_embd : nullptr;
      const float* const of_position = w.positions.empty() ? nullptr : w.positions.data() + static_cast<size_t>(position) * n_embd;
      for (size_t i = 0; i < n_embd; ++i) to[i] = (of_type ? of_type[i] : 0.0f) + (of_position ? of_position[i] : 0.0f);
    }
    pass.backend.upload({pass.work.branch.address}, sums.data(), sums.size() * sizeof(float));
    pass.backend.add(pass.work.x, pass.work.branch, pass.d.n_embd);
  }
  pass.backend.encoder()->layer_norm(pass.work.x, w.norm, w.norm_bias, pass.work.x, pass.d.n_embd, pass.d.norm_eps);
}

}  // namespace orrery::model::encoder_inputs
