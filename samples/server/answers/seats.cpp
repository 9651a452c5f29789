// See seats.h.
#include "answers/seats.h"

#include <algorithm>

#include "answers/reader.h"

namespace orrery::server {
namespace {

uint32_t kv_type(const std::string& name) {
  static constexpr struct {
    const char* name;
    uint32_t type;
  } kTypes[] = {{"", ORRERY_KV_F16},      {"f16", ORRERY_KV_F16},   {"f32", ORRERY_KV_F32},
                {"q8_0", ORRERY_KV_Q8_0}, {"q4_0", ORRERY_KV_Q4_0}, {"k8v4", ORRERY_KV_K8V4}};
  for (const auto& each : kTypes)
    if (name == each.name) return each.type;
  throw std::invalid_argument("--kv-type: '" + name + "' is not f16, f32, q8_0, k8v4 or q4_0");
}

}  // namespace

Seats::Seats(orrery_model* model, const Options& options) {
  auto info = defaults(&orrery_model_info_init);
  call([&](orrery_error* error) { return orrery_model_get_info(model, &info, error); });
  auto o = defaults(&orrery_session_options_init);
  o.n_context =
      options.context_given || info.trained_context == 0 ? options.context_tokens : std::min(options.context_tokens, info.trained_context);
  o.kv_type = kv_type(options.kv_type);
  if (!options.policy.empty()) o.policy = options.policy.c_str();
  o.kv_budget_bytes = options.kv_budget_bytes;
  if (options.kv_budget_share > 0) o.kv_budget_share = options.kv_budget_share;
  std::vector<Adapter> adapters;  // the sessions keep them
  std::vector<orrery_adapter_use> uses;
  for (const auto& [path, scale] : options.adapters) {
    auto source = defaults(&orrery_source_init);
    source.path = path.c_str();
    adapters.push_back(
        make<Adapter>([&](orrery_adapter** out, orrery_error* error) { return orrery_adapter_open(model, &source, out, error); }));
    uses.push_back({adapters.back().get(), nullptr, scale, 0});
  }
  o.adapters = uses.data();
  o.n_adapters = static_cast<uint32_t>(uses.size());
  if (!options.folder.empty())
    folder_ = make<Folder>([&](orrery_folder** out, orrery_error* error) {
      return orrery_folder_open(options.folder.c_str(), options.folder_bytes, out, error);
    });
  o.folder = folder_.get();
  for (uint32_t i = 0; i < options.sessions; ++i) {
    Seat seat;
    seat.session = make<Session>([&](orrery_session** out, orrery_error* error) { return orrery_session_open(model, &o, out, error); });
    auto stats = defaults(&orrery_stats_init);
    call([&](orrery_error* error) { return orrery_session_stats(seat.session.get(), &stats, error); });
    context_tokens_ = stats.n_context;
    o.n_context = stats.n_context;  // all alike, where the first one took what fits
    seats_.push_back(std::move(seat));
  }
}

size_t Seats::busy() const {
  return static_cast<size_t>(std::count_if(seats_.begin(), seats_.end(), [](const Seat& seat) { return seat.state != Seat::State::idle; }));
}

Seat* Seats::best(const std::vector<int32_t>& prompt) {
  Seat *oldest = nullptr, *nearest = nullptr;
  size_t most = 0;
  for (Seat& seat : seats_) {
    if (seat.state != Seat::State::idle) continue;
    if (!oldest || seat.last_used < oldest->last_used) oldest = &seat;
    const size_t n = std::min(seat.held.size(), prompt.size());
    const auto differs = std::mismatch(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(n), seat.held.begin());
    const size_t shared = static_cast<size_t>(differs.first - prompt.begin());
    if (shared > most && 2 * shared >= seat.held_prompt) nearest = &seat, most = shared;
  }
  return nearest ? nearest : oldest;
}

std::string Seats::save() {
  const Folder folder = std::move(folder_);
  std::string errors;
  for (const Seat& seat : seats_) {
    if (!folder || seat.held.empty() || seat.state != Seat::State::idle) continue;
    try {
      call([&](orrery_error* error) { return orrery_folder_save(folder.get(), seat.session.get(), nullptr, error); });
    } catch (const ApiError& error) {
      errors += error.what() + std::string("\n");
    }
  }
  return errors;
}

void Seats::begin(Seat* seat, const std::shared_ptr<Job>& job, const Options& options) {
  const Request& request = job->request;
  orrery_session* session = seat->session.get();
  std::vector<const char*> stops;
  const orrery_generate_options o = request.options(&stops);
  if (request.chat) {
    const orrery_template_options chat = template_options(request, options);
    call([&](orrery_error* error) { return orrery_session_rewind_messages(session, 0, error); });  // their KV stays
    call([&](orrery_error* error) { return orrery_session_set_template(session, &chat, error); });
    for (const std::string& message : request.messages)
      call([&](orrery_error* error) { return orrery_session_add_message_json(session, message.c_str(), error); });
    seat->generation =
        make<Generation>([&](orrery_generation** out, orrery_error* error) { return orrery_generate(session, &o, out, error); });
  } else {
    seat->generation = make<Generation>([&](orrery_generation** out, orrery_error* error) {
      return orrery_generate_tokens(session, job->prompt.data(), job->prompt.size(), &o, out, error);
    });
  }
  seat->job = job;
  seat->cancelled = false;
  seat->last_used = ++n_answers_;
}

void Seats::end(Seat* seat) {
  seat->generation.reset();
  seat->held_prompt = seat->job->prompt.size();
  seat->job.reset();
  seat->held.clear();
  try {
    seat->held = sized<std::vector<int32_t>>([&](int32_t* tokens, size_t capacity, size_t* n, orrery_error* error) {
      return orrery_session_tokens(seat->session.get(), tokens, capacity, n, error);
    });
  } catch (const ApiError&) {  // after DEVICE_LOST, say: the session shares nothing
  }
}

}  // namespace orrery::server
