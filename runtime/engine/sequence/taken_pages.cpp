// Pages that come from elsewhere, and pages that go there: a file, the prefix tree, a folder.
#include "runtime/engine/sequence/sequence.h"

namespace orrery::engine {

Status Sequence::prepare_backend(const Turn& turn) const {
  ORRERY_TRY(model_->waiting_rows(turn).make_room(&turn.backend(), 0));
  return turn.backend().set_scratch(model_->workspace(turn).scratch, model_->limits(turn));
}

// The form of KV -----------------------------------------------------------------------------------------

void Sequence::upload_means(Backend* backend) {
  backend->upload(device_.means.data(), form_.means->data(), form_.means->size() * sizeof(float));
}

Status Sequence::choose_form(const Turn& turn, const std::atomic<bool>* cancel) {
  const model::Description& h = model_->description();
  form_.rotated = options_.rotated(h);
  if (!options_.centred(h)) {
    form_.means = nullptr;
    return ok_status();
  }
  ORRERY_ASSIGN(auto means, mean_keys(model_.get(), turn, ropes_, device_.pages.get(), state_.get(), options_.chunk(), cancel));
  if (form_.means == means) return ok_status();
  form_.means = std::move(means);
  upload_means(&turn.backend());
  return ok_status();
}

Result<bool> Sequence::begin_load(const StoredForm& loaded, uint32_t n_tokens) {
  const model::Description& h = model_->description();
  const Turn turn = model_->runtime().take_turn();
  const bool alike = loaded.rotated == options_.rotated(h) && static_cast<bool>(loaded.means) == options_.centred(h);
  const bool coarser_slots = options_.form_type(h) != options_.kv_type;
  const bool keeps_form = alike || (options_.centred(h) && !coarser_slots);
  if (keeps_form) {
    form_ = loaded;
    if (form_.means) upload_means(&turn.backend());
  } else {
    ORRERY_TRY(prepare_backend(turn));  // the mean keys may be measured
    ORRERY_TRY(choose_form(turn, nullptr));
  }
  ORRERY_TRY(device_.pages->make_whole_groups_writable(&turn.backend(), 0, n_tokens));
  return keeps_form;
}

// Pages --------------------------------------------------------------------------------------------------

Result<bool> Sequence::prepare_pages(uint32_t from, const std::atomic<bool>* cancel) {
  ORRERY_TRY(finish_pages(cancel));
  if (n_computed() != from) return false;
  if (from == 0) {
    ORRERY_ASSIGN(const Turn turn, model_->runtime().take_turn(cancel));
    ORRERY_TRY(prepare_backend(turn));  // the mean keys may be measured
    ORRERY_TRY(choose_form(turn, cancel));
  }
  return true;
}

Status Sequence::put_pages(uint32_t from, uint32_t page, uint32_t end, const std::function<const std::byte*(uint32_t page)>& bytes_of,
                           const std::atomic<bool>* cancel) {
  ORRERY_ASSIGN(const Turn turn, model_->runtime().take_turn(cancel));
  Backend& backend = turn.backend();
  Resident* const resident = device_.resident.get();
  if (const uint32_t first = from / kTokensOfPage; resident && page == first) {
    const Resident::Use use(resident, turn);
    resident->before_write(first * kTokensOfPage), resident->truncate(first * kTokensOfPage);
  }
  ORRERY_TRY(device_.pages->make_whole_groups_writable(&backend, page * kTokensOfPage, end * kTokensOfPage));
  for (; page < end; ++page) device_.pages->upload(&backend, page, page + 1, bytes_of(page));
  return backend.synchronize();
}

void Sequence::take_tokens(uint32_t from, Span<const int32_t> tokens, Span<const uint8_t> made, CheckpointedState::Bytes state) {
  truncate(from);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  made_.insert(made_.end(), made.begin(), made.end());
  n_computed_ = static_cast<uint32_t>(tokens_.size());
  if (state) state_->add_checkpoint(n_computed(), std::move(state));
}

Status Sequence::download_pages(uint32_t first, uint32_t end, std::byte* to) const {
  const Turn turn = model_->runtime().take_turn();
  device_.pages->download(&turn.backend(), first, end, to);
  return turn.backend().synchronize();
}

Status Sequence::download_pages(uint32_t first, Span<std::byte* const> to) const {
  const Turn turn = model_->runtime().take_turn();
  for (uint32_t i = 0; i < to.size(); ++i) device_.pages->download(&turn.backend(), first + i, first + i + 1, to[i]);
  return turn.backend().synchronize();
}

Status Sequence::upload_pages(uint32_t first, uint32_t end, const std::byte* from, const Cancel& cancel) const {
  ORRERY_ASSIGN(const Turn turn, model_->runtime().take_turn(cancel));
  device_.pages->upload(&turn.backend(), first, end, from);
  return turn.backend().synchronize();
}

Status Sequence::read_behind(PageFeed::Read read) {
  ORRERY_TRY(enter(Stage::arriving));
  feed_ = PageFeed::start(std::move(read));
  return ok_status();
}

Status Sequence::finish_pages(const Cancel& cancel) {
  Status status = std::exchange(late_, Status());
  if (stage_ != Stage::arriving) return status;
  status = feed_->wait(cancel);
  if (!status.ok() && status.code() == Code::cancelled && cancel.asked()) return status;
  feed_.reset();
  stage_ = Stage::ready;
  if (!status.ok()) truncate(0);
  return status;
}

// States -------------------------------------------------------------------------------------------------

Result<CheckpointedState::Bytes> Sequence::read_state() const {
  const Turn turn = model_->runtime().take_turn();
  return state_->read(&turn.backend());
}

Status Sequence::save_resident(std::vector<std::byte>* out) const {
  if (!decodes_resident() || n_computed() == 0) return ok_status();
  const Turn turn = model_->runtime().take_turn();
  const Resident::Use use(device_.resident.get(), turn);
  return device_.resident->save(n_computed(), out);
}

Status Sequence::take_resident(Span<const std::byte> state, uint32_t n_tokens, std::unique_ptr<policy::Policy> checked) {
  const Turn turn = model_->runtime().take_turn();
  const Resident::Use use(device_.resident.get(), turn);
  return device_.resident->take(state, n_tokens, std::move(checked));
}

}  // namespace orrery::engine
